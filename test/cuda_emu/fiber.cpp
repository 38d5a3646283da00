// fiber.cpp -- making stacks and switching between them.
#include "fiber.h"

#include <cstdint>
#include <sys/mman.h>

#include "runtime.h"
#ifdef EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace emu {

static constexpr size_t GUARD_BYTES = 4096;  // below the stack: running over it ends in SIGSEGV
#ifdef EMU_ASAN
static constexpr size_t STACK_BYTES = 256 << 10;
#else
static constexpr size_t STACK_BYTES = 64 << 10;
#endif

#ifndef EMU_UCONTEXT
// emu_switch(&from's stack pointer, to's stack pointer): what a callee must keep is pushed, the rest is the
// caller's business. The address is popped and jumped to: a `ret` would be predicted wrongly every time (4
// times slower).
extern "C" void emu_switch(void** from, void* to);
asm(R"(
    .text
    .globl emu_switch
    .type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .size emu_switch, .-emu_switch
)");

static void prepare(Fiber* fiber, void (*entry)()) {
    // Stack tops at different offsets: the same offset in a thousand stacks is the same few lines of the L1
    // cache.
    static unsigned colour;
    colour = (colour + 5 * 64) & 4095;
    void** top = (void**)(fiber->stack + fiber->stack_bytes - colour);
    *--top = nullptr;
    *--top = nullptr;
    *--top = nullptr;  // 8 modulo 16 on entry, as behind a call
    *--top = (void*)entry;
    for (int i = 0; i < 6; i++) { *--top = nullptr; }
    fiber->stack_pointer = top;
}
#else
static void prepare(Fiber* fiber, void (*entry)()) {
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = fiber->stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, entry, 0);
}
#endif

Fiber* fiber_new(void (*entry)()) {
    Fiber* fiber = new Fiber;
    void* memory = mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) { fail("no memory for the stack of a CUDA thread"); }
    mprotect(memory, GUARD_BYTES, PROT_NONE);
    fiber->stack = (char*)memory + GUARD_BYTES;
    fiber->stack_bytes = STACK_BYTES;
    prepare(fiber, entry);
    return fiber;
}

void fiber_switch(Fiber* from, Fiber* to) {
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&from->asan_stack, to->stack, to->stack_bytes);
#endif
#ifdef EMU_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    emu_switch(&from->stack_pointer, to->stack_pointer);
#endif
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(from->asan_stack, nullptr, nullptr);
#endif
}

void fiber_entered(Fiber* program) {
#ifdef EMU_ASAN
    const void* stack = nullptr;
    size_t stack_bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &stack_bytes);
    if (program->stack == nullptr) {  // the very first fiber is entered from the program
        program->stack = (char*)const_cast<void*>(stack);
        program->stack_bytes = stack_bytes;
    }
#else
    (void)program;
#endif
}

}  // namespace emu
