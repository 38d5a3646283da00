/*
fiber.h -- stacks to switch between by hand: a CUDA thread that has to wait keeps its place on one of these.

x86-64: a switch saves six registers (about 3 ns). Other CPUs, or -DEMU_UCONTEXT: swapcontext (100 times
slower, the same results). AddressSanitizer is told about every switch.
*/
#pragma once

#include <cstddef>
#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#endif

namespace emu {

struct Fiber {
    void* stack_pointer = nullptr;  // where it goes on
    char* stack = nullptr;  // lowest usable byte; nullptr: the stack of the program (or not known yet)
    size_t stack_bytes = 0;
    void* asan_stack = nullptr;  // AddressSanitizer's, while this fiber does not run
#ifdef EMU_UCONTEXT
    ucontext_t context;
#endif
};

// A fiber that will begin in `entry`, which must never return. Made once and reused: never freed.
Fiber* fiber_new(void (*entry)());
// Leave `from`, which is running, for `to`; returns when something switches back to `from`.
void fiber_switch(Fiber* from, Fiber* to);
// The first statement of `entry`; `from` is whoever may start fibers from the stack of the program.
void fiber_entered(Fiber* program);

}  // namespace emu
