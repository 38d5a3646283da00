#!/usr/bin/env python3
"""dist.py [DIRECTORY] -- what a fork of llm.c gets, as a few files in DIRECTORY (dist).

    dynapipe.h dynapipe_llmc.h dynapipe_llmc.cuh dynapipe.mk mpirun.sh    as they are, with the version in dynapipe.mk
    dynapipe.c        the library: loader, planner, run, measure, check, MPI and the adapters' C part, one translation unit
    dynapipe_cuda.c   the same for GPUs: devices, NCCL, messages staged in host memory; includes dynapipe.c
    prepare_data.c    the program that makes sample files; compiled as C++ it is its SentencePiece part

Sources are found by folder. Headers are included once, in order; names that only one file knows and another file has too
get the file's name in front; functions are static but for dynapipe_*; what no such function reaches is left out.
"""
import filecmp, glob, os, re, shutil, subprocess, sys, tempfile

PLUGIN = 'dynapipe_plugin'
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/|(?:\.|->)\s*[A-Za-z_]\w*|[A-Za-z_]\w*', re.S)
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)
WORDS = set('if for while switch return sizeof defined _Static_assert __attribute__ _Alignas _Generic'.split())
# Functions of the C library whose names a file without their header may give to its own.
LIBRARY = set('send recv connect accept bind listen read write open close index remove link pipe select signal wait '
              'truncate access nice pause sync dup times basename dirname'.split())


def blank(text):
    """Comments and strings as blanks, of the same length."""
    return COMMENT.sub(lambda m: re.sub(r'[^\n]', ' ', m.group(0)), text)


class Chunk:
    """A piece of a file at its outermost level: a directive, or a declaration with the comment above it."""

    def __init__(self, text, plain, where):
        self.text, self.where = text, where
        self.kind, self.names = classify(plain)
        self.is_static = bool(re.match(r'\s*static\b', plain))
        self.is_forward = self.kind == 'type' and '{' not in plain and bool(re.match(r'\s*(typedef\s+)?(struct|union)\b', plain))
        self.words = words_of(plain, self.kind)


def words_of(plain, kind):
    """Names that it may refer to: no members, neither where a struct declares them nor where they are read or set."""
    if kind == 'type' and re.match(r'\s*(typedef\s+)?(struct|union)\b', plain):
        return set(re.findall(r'[A-Za-z_]\w*(?!\w|\s*[;,\[:)])', plain))
    return set(re.findall(r'(?<![\w.])(?<!->)[A-Za-z_]\w*', plain))


def classify(plain):
    s = re.sub(r'__attribute__\s*\(\(.*?\)\)\)?', '', plain, flags=re.S).strip()
    if s.startswith('#'):
        m = re.match(r'#\s*define\s+(\w+)', s)
        return ('macro', [m.group(1)]) if m else ('directive', [])
    if s == '':
        return 'comment', []
    if re.match(r'_Static_assert\b|static_assert\b', s):
        return 'assert', []
    head = s.split('{')[0]
    is_type = re.match(r'typedef\b', s) or (re.match(r'(struct|enum|union)\b[^;=()]*(\{|;)', s) and not re.search(r'\}\s*\w', s))
    if is_type:
        names = []
        m = re.match(r'typedef\b.*\(\s*\*\s*(\w+)\s*\)', s, re.S)
        m2 = re.match(r'typedef\b[^(]*?(\w+)\s*\(', s)
        end = re.search(r'(\w+)\s*(?:\[[^\]]*\])*\s*;\s*$', s)
        if m and '{' not in s: names.append(m.group(1))
        elif m2 and '{' not in s: names.append(m2.group(1))
        elif end and s.startswith('typedef'): names.append(end.group(1))
        m = re.match(r'(?:typedef\s+)?(?:struct|enum|union)\s+(\w+)', s)
        if m: names.append(m.group(1))
        if re.match(r'(typedef\s+)?enum\b', s) and '{' in s:
            names += re.findall(r'(?:\{|,)\s*([A-Za-z_]\w*)', re.sub(r'=[^,}]*', '', s))
        return ('type', names)
    head = s.split('=')[0] if '=' in s.split('(')[0] else s
    m = re.search(r'([A-Za-z_]\w*)\s*\(', head)
    if m and not re.match(r'\s*\*', s[m.end():]) and m.group(1) not in WORDS and '=' not in s[:m.start()] and not re.search(r'\[', s[:m.start()]):
        return ('function' if s.endswith('}') else 'prototype', [m.group(1)])
    m = re.search(r'\(\s*\*\s*(?:const\s+)?(\w+)\s*(?:\[[^\]]*\]\s*)?\)', head.split('{')[0])
    if m and '=' not in s[:m.start()]: return 'variable', [m.group(1)]
    s = re.sub(r'^(static\s+)?(const\s+)?(struct|union|enum)\s*\w*\s*\{.*?\n?\}', ' ', s, flags=re.S)
    names, depth, part = [], 0, ''
    for c in s:  # declarators, without what is in brackets
        depth -= c in ')]}'
        if depth == 0 and c in ',;':
            m = re.search(r'(\w+)\s*$', part.split('=')[0].rstrip())
            if m: names.append(m.group(1))
            part = ''
        elif depth == 0 and c not in '([{}])': part += c
        depth += c in '([{'
    return 'variable', names


def chunks_of(text, where):
    text = re.sub(r'#ifdef __cplusplus\n(extern "C" \{|\})\n#endif\n', '', text)
    text = re.sub(r'^#pragma once\n', '', text, flags=re.M)
    plain, out = blank(text), []
    start = at = depth = 0
    n = len(text)
    begun = False  # a declaration, or only blanks and comments so far
    while at < n:
        c = plain[at]
        if not begun and c == '#':  # comments above stay with the directive
            end = at
            while True:
                end = text.find('\n', end)
                end = n if end < 0 else end + 1
                if plain[at:end].rstrip('\n').rstrip(' ')[-1:] != '\\': break
            out.append(Chunk(text[start:end], plain[start:end], where))
            start = at = end
            continue
        if not c.isspace(): begun = True
        if c in '({': depth += 1
        elif c in ')}': depth -= 1
        if depth == 0 and begun and (c == ';' or c == '}' and is_body(plain[start:at + 1])):
            end = text.find('\n', at)
            end = n if end < 0 else end + 1
            if plain[at + 1:end].strip(): end = at + 1  # another declaration on this line
            out.append(Chunk(text[start:end], plain[start:end], where))
            start = at = end
            begun = False
            continue
        at += 1
    if text[start:].strip(): out.append(Chunk(text[start:], plain[start:], where))
    return out


def is_body(plain):
    s = plain.strip()
    head = s.split('{')[0]
    return '(' in head and '=' not in head and not head.startswith('typedef')


class Unit:
    """Files that become one."""

    def __init__(self, known=()):
        self.seen, self.files, self.system = set(known), [], {}

    def add(self, path, outer=()):
        path = os.path.normpath(path)
        if path in self.seen: return
        self.seen.add(path)
        body = []
        depth = 0
        for chunk in chunks_of(open(path).read(), path):
            s = chunk.text.strip().split('\n')[-1]
            if chunk.kind == 'directive' and re.match(r'#\s*if', s): depth += 1
            if chunk.kind == 'directive' and re.match(r'#\s*endif', s): depth -= 1
            m = re.match(r'#include "([^"]+)"', s)
            if m:
                inc = os.path.normpath(os.path.join(os.path.dirname(path), m.group(1)))
                if not os.path.exists(inc): inc = os.path.normpath(m.group(1))
                base = os.path.basename(inc)
                if base in PUBLIC: continue
                self.add(inc)
                continue
            m = re.match(r'#include (<[^>]+>)', s)
            if m and depth == 0:
                self.system.setdefault(m.group(1), set()).add(path)
                continue
            if re.match(r'#define _(GNU|POSIX_C|DEFAULT)_SOURCE', s): continue
            body.append(chunk)
        self.files.append((path, body))


PUBLIC = ('dynapipe.h', 'dynapipe_llmc.h')


def rename(text, names):
    if not names: return text
    return TOKEN.sub(lambda m: names.get(m.group(0), m.group(0)), text)


def reach(roots, meaning):
    reached, todo = set(), list(roots)
    while todo:
        name = todo.pop()
        if name in reached: continue
        reached.add(name)
        for c in meaning.get(name, ()): todo += c.words - reached
    return reached


def finish(unit, roots, api, before=(), also=(), guarded_roots=()):
    """The text of a unit: names made different, functions static, what roots do not reach left out."""
    files = unit.files
    headers = {n for path, body in list(before) + files if path.endswith('.h') for c in body if c.is_forward for n in c.names}
    owners = {}  # name -> files that define it
    for path, body in list(before) + files:
        for c in body:
            if c.kind in ('function', 'variable', 'macro') or c.kind == 'type' and not c.is_forward:
                for name in c.names: owners.setdefault(name, set()).add(path)
    all_functions = {n for _, body in files for c in body if c.kind == 'function' for n in c.names}
    hidden = {c.names[0] for _, body in files for c in body if c.kind == 'macro' and re.search(r'\bstatic\b', c.text)}
    for _, body in files:  # a macro may bring the word
        for c in body:
            first = re.match(r'\s*(\w+)', blank(c.text))
            c.is_static |= bool(first and first.group(1) in hidden)
    defined = {}
    for path, body in files:
        is_source = path.endswith('.c') or path.endswith('.cpp')
        stem = os.path.splitext(os.path.basename(path))[0]
        names, functions = {}, {n for c in body if c.kind in ('function', 'prototype') for n in c.names}
        if is_source:
            for c in body:
                own = c.kind == 'type' or (c.kind in ('function', 'variable', 'prototype') and c.is_static)
                for name in c.names:
                    if own and (len(owners.get(name, ())) > 1 or name in LIBRARY):
                        if c.kind == 'type' and (c.is_forward or name in headers): continue
                        if name.isupper(): new = stem.upper() + '_' + name
                        elif name[0].isupper(): new = ''.join(p.capitalize() for p in stem.split('_')) + name
                        else: new = stem + '_' + name
                        while new in owners: new += '_'
                        names[name] = new
        for c in body:  # data that other files see keeps its linkage: C++ has no other way to declare it before
            if c.kind == 'variable' and not c.is_static and not c.text.lstrip().startswith('extern'):  # (environ is libc's)
                for name in c.names:
                    if not name.startswith('dynapipe_') and name not in all_functions: EXTERNAL[name] = 'dynapipe_' + name
        for c in body:
            c.names = [names.get(x, x) for x in c.names]
            # (a member may have a function's name)
            is_struct = c.kind == 'type' and '{' in c.text and not re.match(r'\s*(typedef\s+)?enum', blank(c.text))
            c.text = rename(c.text, {a: b for a, b in names.items() if not (is_struct and a in functions)})
            c.words = {names.get(w, w) for w in c.words}
    for path, body in files:
        for c in body:
            c.text = rename(c.text, EXTERNAL)
            c.words = {EXTERNAL.get(w, w) for w in c.words}
            c.names = [EXTERNAL.get(w, w) for w in c.names]
            if c.kind in ('function', 'variable') and not c.text.lstrip().startswith('extern'):
                for name in c.names: defined.setdefault(name, []).append(c)
    for path, body in files:  # T f; where T is a type of functions
        for c in body:
            if c.kind == 'variable' and path.endswith('.h') and c.names and all_functions.issuperset(c.names): c.kind = 'prototype'
    # what is reached
    meaning = {}
    for path, body in list(before) + files:
        for c in body:
            if c.kind in ('function', 'variable', 'type', 'macro'):
                for name in c.names: meaning.setdefault(name, []).append(c)
    always = reach(roots, meaning)
    reached = reach(set(roots) | set(guarded_roots), meaning)
    have = set(also) | {name for name in defined} | {n for _, b in before for c in b if c.kind == 'function' for n in c.names}
    out = []
    for path, body in files:
        lines, macros = [], []
        for c in body:
            if c.kind == 'prototype':
                name = c.names[0]
                if name not in reached or name not in have: continue
                if not c.is_static and name not in api: c.text = make_static(c.text)
            elif c.kind in ('function', 'variable', 'type', 'macro'):
                if c.names and not reached.intersection(c.names): continue
                if c.kind == 'function' and path.endswith('.c') and not c.is_static and c.names[0] not in api:
                    c.text = make_static(c.text)
                if c.kind == 'macro' and not path.endswith('.h'): macros.append(c.names[0])
            if guarded_roots and c.kind in ('function', 'prototype', 'variable') and c.names and not always.intersection(c.names):
                c.text = '#ifdef DYNAPIPE_CUDA\n' + c.text.strip('\n') + '\n#endif\n\n'
            lines.append(c.text)
        text = drop_empty(''.join(lines))
        if not blank(text).strip(): continue
        text = text.rstrip('\n') + '\n' + ''.join(f'#undef {m}\n' for m in dict.fromkeys(macros))
        text = re.sub(r'\n{3,}', '\n\n', text)
        out.append((path, text))
    return out


def make_static(text):
    plain = blank(text)
    at = re.search(r'\S', plain).start()
    return text[:at] + 'static ' + text[at:]


def drop_empty(text):
    """Without conditions that hold nothing."""
    while True:
        short = re.sub(r'^#if[^\n]*\n(?:[ \t]*\n|#el[^\n]*\n)*#endif[^\n]*\n', '', text, flags=re.M)
        if short == text: return text
        text = short


EXTERNAL = {}


def api_of(*headers):
    names = set()
    for header in headers:
        for c in chunks_of(open(header).read(), header):
            if c.kind in ('prototype', 'function', 'type', 'macro'): names.update(c.names)
    return names


def spiece_part(tool, source):
    """The C++ file with the headers that it includes, as they are."""
    seen = set()

    def flat(path, text):
        def one(m):
            inc = os.path.normpath(os.path.join(os.path.dirname(path), m.group(1)))
            if inc in seen: return ''
            seen.add(inc)
            return flat(inc, open(inc).read())
        return re.sub(r'^#include "([^"]+)"\n', one, text.replace('#pragma once\n', ''), flags=re.M)
    return flat('dataloader/tokenizer/spiece.cpp', source)


def section(path, text):
    return f'\n// ===== {path} ' + '=' * max(4, 100 - len(path)) + '\n' + text


def guarded(path, text):
    """What is there only with MPI, or without."""
    if path.endswith('transport_loopback.c'): text = text.replace('static Status transport_loopback_open', '__attribute__((unused)) static Status transport_loopback_open')
    return f'#ifdef DYNAPIPE_MPI\n{text}#endif\n' if path.endswith('transport_mpi.c') else text


def sources(*folders):
    return [f for folder in folders for f in sorted(glob.glob(folder + '/*.c') + glob.glob(folder + '/*/*.c'))]


def head(name, what, version):
    licence = ''.join('// ' + line if line.strip() else '//\n' for line in open('LICENSE'))
    return f'// {name} -- {what}\n// DynaPipe for llm.c {version}. Made by `make dist` of these files\' sources: do not edit.\n//\n{licence.rstrip()}\n'


def main():
    there = sys.argv[1] if len(sys.argv) > 1 else 'dist'
    out = tempfile.mkdtemp()
    version = subprocess.run(['git', 'describe', '--always', '--abbrev=12', '--dirty', '--exclude', '*'], capture_output=True, text=True).stdout.strip() or 'unknown'
    base = 'util' if os.path.isdir('util') else PLUGIN + '/base'
    public = [PLUGIN + '/dynapipe.h', PLUGIN + '/adapters/dynapipe_llmc.h']
    api = api_of(*public)
    api_functions = {n for n in api if n.startswith('dynapipe_')}

    lib = Unit()
    loader = [p for p in sources('dataloader') if p.count('/') == 1]
    for path in sources(base, PLUGIN + '/plan') + loader + sources(*(PLUGIN + '/' + d for d in ('run', 'measure', 'check', 'adapters'))):
        lib.add(path)
    cuda = Unit(lib.seen)
    for path in sources(PLUGIN + '/cuda'): cuda.add(path)

    # the library's own headers stand first, so order among its sources does not matter
    lib.files.sort(key=lambda f: not f[0].endswith('.h'))
    cuda_words = set().union(*(c.words for _, b in cuda.files for c in b)) if cuda.files else set()
    text = finish(lib, api_functions, api, guarded_roots=cuda_words)
    used = {path for path, _ in text}
    system = ''.join(GUARD.get(s) or PCRE.get(s, '') + f'#include {s}\n' for s in sorted(lib.system) if lib.system[s] & used)
    with open(out + '/dynapipe.c', 'w') as f:
        f.write(head('dynapipe.c', 'the library: one translation unit', version))
        f.write('#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif\n' + CXX + system)
        f.write('#include "dynapipe.h"\n#include "dynapipe_llmc.h"\n')
        for path, t in text: f.write(section(path, guarded(path, t)))
    cuda_text = finish(cuda, cuda_words, api, before=lib.files)
    with open(out + '/dynapipe_cuda.c', 'w') as f:
        f.write(head('dynapipe_cuda.c', 'the library with GPUs: the translation unit in place of dynapipe.c', version))
        f.write('#define DYNAPIPE_CUDA\n#include "dynapipe.c"\n')
        f.write(''.join(f'#include {s}\n' for s in sorted(cuda.system) if s not in lib.system and s != '<nccl.h>'))
        f.write('#ifndef DYNAPIPE_NO_NCCL\n#include <nccl.h>\n#endif\n')
        for path, t in cuda_text:
            if re.search(r'_nccl\.[ch]$|/nccl|/call_watch', path): t = f'#ifndef DYNAPIPE_NO_NCCL\n{t}#endif\n'
            f.write(section(path, t))
    EXTERNAL.clear()
    tool = Unit()
    words = {'main'}
    for path in sources(base, 'dataloader'):
        if not path.endswith('spiece_missing.c'): tool.add(path)
    missing = Unit(tool.seen)
    missing.add('dataloader/tokenizer/spiece_missing.c')
    tool.files.sort(key=lambda f: not f[0].endswith('.h'))
    spiece = open('dataloader/tokenizer/spiece.cpp').read()
    spiece_words = set(re.findall(r'[A-Za-z_]\w*', blank(spiece)))
    for _, body in tool.files:  # and what its macros name
        for c in body:
            if c.kind == 'macro' and c.names[0] in spiece_words: spiece_words = spiece_words | c.words
    missing_names = {n for _, b in missing.files for c in b if c.kind == 'function' for n in c.names}
    tool_text = finish(tool, words | spiece_words, missing_names | spiece_words | {'main'}, also=missing_names)
    used = {path for path, _ in tool_text}
    with open(out + '/prepare_data.c', 'w') as f:
        f.write(head('prepare_data.c', 'the program that makes sample files', version))
        f.write('// As C++ with -DDYNAPIPE_SPIECE: its part that calls the SentencePiece library, which is C++.\n')
        f.write('#ifdef DYNAPIPE_SPIECE\n' + spiece_part(tool, spiece) + '#endif\n#ifndef __cplusplus\n')
        f.write('#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif\n')
        f.write(''.join(PCRE.get(s, '') + f'#include {s}\n' for s in sorted(tool.system) if tool.system[s] & used))
        for path, t in tool_text: f.write(section(path, t))
        f.write('\n#ifndef DYNAPIPE_SPIECE_LINKED\n')
        for path, t in finish(missing, missing_names, missing_names, before=tool.files): f.write(section(path, t))
        f.write('#endif\n#endif\n')
    for name in ('dynapipe.h', 'adapters/dynapipe_llmc.h', 'adapters/dynapipe_llmc.cuh', 'dynapipe.mk', 'mpirun.sh'):
        to = out + '/' + os.path.basename(name)
        shutil.copy(PLUGIN + '/' + name, to)
        if name == 'dynapipe.mk':
            tools = open(PLUGIN + '/sources.mk').read()
            tools = re.sub(r'# --- sources -.*?(?=# --- text to tokens)', '', tools, flags=re.S)
            tools = '\n'.join(line for line in tools.split('\n') if not line.startswith('#') and not re.match(r'DYNAPIPE_\w*SRCS? ', line))
            text = open(to).read()
            include = 'include $(dir $(lastword $(MAKEFILE_LIST)))sources.mk\n'
            open(to, 'w').write(text.replace(include, re.sub(r'\n{2,}', '\n', tools)))
        if 'adapters' in name:
            text = open(to).read().replace('"../dynapipe.h"', '"dynapipe.h"')
            open(to, 'w').write(text)
    os.makedirs(there, exist_ok=True)
    for name in os.listdir(out):  # what is the same keeps its time
        if not os.path.exists(there + '/' + name) or not filecmp.cmp(out + '/' + name, there + '/' + name, False):
            shutil.copy(out + '/' + name, there + '/' + name)
    shutil.rmtree(out)


GUARD = {'<mpi.h>': '#ifdef DYNAPIPE_MPI\n#include <mpi.h>\n#endif\n'}
PCRE = {'<pcre2.h>': '#define PCRE2_CODE_UNIT_WIDTH 8\n'}
CXX = '''#ifdef __cplusplus
#define _Static_assert static_assert
#define _Thread_local thread_local
#define restrict __restrict
#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
// Fields that an initializer does not name are zeros, as in C.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#ifdef __clang__
#pragma GCC diagnostic ignored "-Wmissing-braces"
#pragma GCC diagnostic ignored "-Wc99-designator"
#endif
#endif
'''

if __name__ == '__main__':
    main()
