#!/usr/bin/env python3
"""translate.py FILE.ptx OUT.cpp -- PTX, as nvcc wrote it, as C++ for a CPU (ptx.h).

A kernel becomes a function of one thread: a register is a variable of its width, an instruction a statement, a branch a
goto. What is not known here ends the translation. Semantics: PTX ISA 9.0, chapter 9.
"""
import re
import sys

TYPE = re.compile(r'pred|bf16x2|bf16|[bsuf](?:8|16|32|64|128)$')
STATEMENT = re.compile(r'''\s*(?:
    (?P<brace>[{}])
  | (?P<line>\.(?:version|target|address_size|file|loc|maxntid|reqntid|minnctapersm|maxnreg)\b[^\n]*)
  | (?P<section>\.section[^{]*\{[^}]*\})
  | (?P<entry>(?:\.(?:visible|weak)\s+)*\.entry\s[^)]*\))
  | (?P<label>[$%\w]+):
  | (?P<plain>[^;{}][^;]*);)''', re.X)


class Unknown(Exception):
    pass


def size_of(t):
    return {'pred': 1, 'bf16': 2, 'bf16x2': 4}.get(t) or int(t[1:]) // 8


def c_type(t):
    return {'pred': 'bool', 'f32': 'float', 'f64': 'double'}.get(t) or f"{'' if t[0] == 's' else 'u'}int{8 * size_of(t)}_t"


def unsigned(t):
    return f'uint{8 * size_of(t)}_t'


def elements(operand):
    return [x.strip() for x in operand[1:-1].split(',')] if operand.startswith('{') else [operand]


def variable_name(register):
    return 'v_' + register.replace('%', '').replace('$', '_')


def label_name(label):
    return label.replace('$', 'L').replace('%', 'P')


# .f32 and .f64: expression, and the modifiers it may have besides .ftz. rn: only that rounding; round: each of them.
FLOAT = {
    'add': ('{0} + {1}', 'round sat'), 'sub': ('{0} - {1}', 'round sat'), 'mul': ('{0} * {1}', 'round sat'),
    'fma': ('std::fma({0}, {1}, {2})', 'round sat'), 'mad': ('std::fma({0}, {1}, {2})', 'round sat'), 'div': ('{0} / {1}', 'rn approx full'),
    'copysign': ('std::copysign({1}, {0})', ''),  # (the first one's sign)
    'rcp': ('1 / {0}', 'rn approx'), 'sqrt': ('std::sqrt({0})', 'rn approx'), 'neg': ('-{0}', ''), 'abs': ('std::fabs({0})', ''),
    'min': ('ptx_min({0}, {1})', 'NaN'), 'max': ('ptx_max({0}, {1})', 'NaN'),
    **{name: ('', 'approx') for name in 'rsqrt ex2 lg2 tanh sin cos'.split()}}
# Integers and bits: type of the result, types of the operands (t: the instruction's own), expression.
INTEGER = {
    'add': ('t', 'tt', '({u})({0}) + ({u})({1})'), 'sub': ('t', 'tt', '({u})({0}) - ({u})({1})'), 'neg': ('t', 't', '0 - ({u})({0})'),
    'abs': ('t', 't', '{0} < 0 ? 0 - ({u})({0}) : ({u})({0})'), 'min': ('t', 'tt', '{0} < {1} ? {0} : {1}'), 'max': ('t', 'tt', '{0} > {1} ? {0} : {1}'),
    'div': ('t', 'tt', 'ptx_divide(t, {0}, {1}, {line})'), 'rem': ('t', 'tt', 'ptx_remainder(t, {0}, {1}, {line})'),
    'not': ('t', 't', '~{0}'), 'and': ('t', 'tt', '{0} & {1}'), 'or': ('t', 'tt', '{0} | {1}'), 'xor': ('t', 'tt', '{0} ^ {1}'),
    'shl': ('t', ('t', 'u32'), 'ptx_shl({0}, {1})'), 'shr': ('t', ('t', 'u32'), 'ptx_shr({0}, {1})'),
    'popc': ('u32', 't', 'std::popcount({0})'), 'clz': ('u32', 't', 'std::countl_zero({0})'), 'brev': ('t', 't', 'ptx_brev({0})'),
    'prmt': ('t', 'ttt', 'ptx_prmt({0}, {1}, {2})'), 'lop3': ('t', 'tttt', 'ptx_lop3({0}, {1}, {2}, {3})'),
    'bfi': ('t', ('t', 't', 'u32', 'u32'), 'ptx_bfi({0}, {1}, {2}, {3})'), 'bfe': ('t', ('t', 'u32', 'u32'), 'ptx_bfe({0}, {1}, {2})'),
    'selp': ('t', ('t', 't', 'pred'), '{2} ? {0} : {1}')}
COMPARE = {'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>=', 'lo': '<', 'ls': '<=', 'hi': '>', 'hs': '>='}
SPECIAL = {
    **{f'%{name}.{d}': f'ptx_{name}[{i}]' for name in ('ntid', 'ctaid', 'nctaid') for i, d in enumerate('xyz')},
    **{f'%tid.{d}': f't->tid[{i}]' for i, d in enumerate('xyz')},
    '%laneid': 't->lane', 'WARP_SZ': '32', '%clock64': 'ptx_clock()', '%globaltimer': 'ptx_clock()',
    '%lanemask_eq': '(1u << t->lane)', '%lanemask_lt': '((1u << t->lane) - 1)', '%lanemask_le': '((2u << t->lane) - 1)',
    '%lanemask_gt': '~((2u << t->lane) - 1)', '%lanemask_ge': '~((1u << t->lane) - 1)'}
CACHE_HINTS = set('ca cg cs lu cv wb wt nc volatile relaxed weak acquire release cta gpu sys'.split())
# What a basic block is counted in.
CLASSES = {'ld': 'MEMORY', 'st': 'MEMORY', 'cp': 'MEMORY', 'atom': 'MEMORY', 'red': 'MEMORY', 'ldmatrix': 'MEMORY', 'mma': 'MMA', 'shfl': 'SHUFFLE',
           'redux': 'SHUFFLE', 'vote': 'SHUFFLE', 'bar': 'BARRIER', 'barrier': 'BARRIER'}


class Kernel:
    def __init__(self, name, params):
        self.name, self.params, self.registers, self.body, self.blocks = name, params, {}, [], []
        self.shared, self.local, self.dynamic_align, self.max_threads, self.exact_threads = [], [], 0, 0, 0

    def block(self, line):
        """Begins a basic block: a statement that counts it."""
        self.blocks.append([line, {}])
        return f'COUNT({len(self.blocks) - 1});'


class Translator:
    def __init__(self, text):
        self.kernels, self.module_shared, self.sources, self.places = [], [], {}, []
        self.kernel, self.depth, self.line, self.op = None, 0, 1, ''
        text = re.sub(r'//[^\n]*', '', text)
        at = 0
        while not re.compile(r"\s*$").match(text, at):
            m = STATEMENT.match(text, at)
            if m is None: self.fail('syntax: ' + text[at:at + 60].strip())
            start = m.start(m.lastgroup)
            self.line += text.count('\n', at, start)
            self.statement(m.lastgroup, m.group(m.lastgroup).strip())
            self.line += text.count('\n', start, m.end())
            at = m.end()

    def fail(self, what):
        raise Unknown(f'line {self.line}: {self.op} {what}')

    # --- statements --------------------------------------------------------------------------------------------------
    def statement(self, kind, s):
        k = self.kernel
        if kind == 'brace':
            self.depth += 1 if s == '{' else -1
            if self.depth == 0: self.kernel = None
            elif s == '}' or self.depth > 1: k.body.append(s)
            else: k.body.append(k.block(self.line))
        elif kind == 'entry':
            self.kernel = Kernel(re.search(r'\.entry\s+([\w$]+)', s).group(1), self.parameters(s))
            self.kernels.append(self.kernel)
        elif kind == 'line':
            word, rest = (s.split(None, 1) + [''])[:2]
            numbers = [int(x) for x in re.findall(r'\d+', rest.split('"')[0].split('//')[0])]
            if word == '.file': self.sources[numbers[0]] = rest.split('"')[1]
            elif word == '.loc': self.places.append((self.line, *numbers[:2]))
            elif word in ('.maxntid', '.reqntid'):
                threads = numbers[0] * (numbers + [1, 1])[1] * (numbers + [1, 1])[2]
                if word == '.maxntid': k.max_threads = threads
                else: k.exact_threads = threads
        elif kind == 'label':
            k.body.append(f'{label_name(s)}: {k.block(self.line)}')
        elif kind == 'plain' and s.startswith('.'):
            self.declaration(s)
        elif kind == 'plain':
            self.instruction(s)

    def parameters(self, s):
        params, end = {}, 0
        for p in re.findall(r'\.param\s+([^,)]+)', s):
            m = re.match(r'(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr(?:\s+\.(?:global|shared|const|local))?(?:\s+\.align\s+\d+)?\s+)?([\w$]+)(?:\[(\d+)\])?$', p.strip())
            if m is None: self.fail('parameter ' + p)
            align = int(m.group(1) or size_of(m.group(2)))
            begin = (end + align - 1) // align * align
            end = begin + size_of(m.group(2)) * int(m.group(4) or 1)
            params[m.group(3)] = (begin, end - begin)
        return params

    def declaration(self, s):
        k = self.kernel
        if s.startswith('.pragma'): return
        m = re.match(r'\.reg\s+\.(\w+)\s+(.+)$', s, re.S)
        if m:
            kind = m.group(1) if m.group(1) in ('pred', 'f32', 'f64') else f'b{8 * size_of(m.group(1))}'
            for name in m.group(2).split(','):
                many = re.match(r'\s*(%?[\w$]+)<(\d+)>$', name)
                names = [f'{many.group(1)}{i}' for i in range(int(many.group(2)))] if many else [name.strip()]
                k.registers.update(dict.fromkeys(names, kind))
                if self.depth > 1: k.body.append(f'{c_type(kind)} {variable_name(names[0])};')
            return
        m = re.match(r'(?:\.\w+\s+)*?\.(shared|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(\[(\d*)\])?$', s)
        if m is None: self.fail('declaration ' + s[:80])
        count = int(m.group(6) or 0) if m.group(5) else 1
        variable = (m.group(4), int(m.group(2) or size_of(m.group(3))), count * size_of(m.group(3)))
        (k.local if m.group(1) == 'local' else k.shared if k else self.module_shared).append(variable)

    def instruction(self, s):
        k = self.kernel
        m = re.match(r'(?:@(!?)(%?[\w$]+)\s+)?(\S+)\s*(.*)$', s, re.S)
        self.op = m.group(3)
        name, *modifiers = self.op.split('.')
        t = next((x for x in reversed(modifiers) if TYPE.match(x)), None)
        code = self.translate(name, [x for x in modifiers if not TYPE.match(x)], modifiers, t, self.operands(m.group(4)))
        counts = k.blocks[-1][1]
        kind = CLASSES.get(name, 'FLOAT' if t in ('f32', 'f64') and name in FLOAT else 'OTHER')
        counts[kind] = counts.get(kind, 0) + 1
        if m.group(2):
            code = f'if ({m.group(1)}{variable_name(m.group(2))}) {{ {code} }}'
            if name == 'bra': code += ' ' + k.block(self.line)
        k.body.append(code)

    def operands(self, text):
        return [x.strip() for x in re.findall(r'(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+', text) if x.strip()]

    # --- operands ----------------------------------------------------------------------------------------------------
    def symbol(self, name):
        """Where a variable is, as an expression, and its space; None: there is no such variable."""
        k = self.kernel
        if name in k.params: return str(k.params[name][0]), 'param'
        for v in self.module_shared:
            if v[0] == name and v[2] > 0 and v not in k.shared: k.shared.append(v)
            elif v[0] == name and v[2] == 0:
                k.dynamic_align = max(k.dynamic_align, v[1])
                return 'ptx_dynamic_begin', 'shared'
        for i, v in enumerate(k.shared):
            if v[0] == name: return f'ptx_shared_begin[{i}]', 'shared'
        at = 0
        for v, align, num_bytes in k.local:
            at = (at + align - 1) // align * align
            if v == name: return str(at), 'local'
            at += num_bytes
        return None

    def read(self, a, t):
        """The value of an operand, of type t."""
        if a.startswith('!'): return '!' + self.read(a[1:], t)
        kind, c, v = self.kernel.registers.get(a), c_type(t), variable_name(a)
        if kind is not None:
            if t == kind: return v
            if 'pred' in (t, kind) or size_of(kind) < size_of(t) or ('f' in kind + t and size_of(kind) != size_of(t)): self.fail(f'{a} as {t}')
            if kind in ('f32', 'f64'): return f'({c})bits_of({v})'
            return f"{'float' if t == 'f32' else 'double'}_of({v})" if t in ('f32', 'f64') else f'({c}){v}'
        if a in SPECIAL: return f'({c})({SPECIAL[a]})'
        m = re.match(r'0[fFdD]([0-9a-fA-F]{8,16})$', a)
        if m:
            bits = f'0x{m.group(1)}ull'
            return f'float_of((uint32_t){bits})' if t == 'f32' else f'double_of({bits})' if t == 'f64' else f'({c}){bits}'
        m = re.match(r'-?(?:0[xX][0-9a-fA-F]+|\d+)U?$', a)
        if m and t not in ('f32', 'f64'):
            value = int(a.rstrip('U'), 0)
            return ('false', 'true')[value != 0] if t == 'pred' else f'({c}){value & (1 << 64) - 1:#x}ull'
        found = self.symbol(a)
        if found is None: self.fail(f'operand {a} as {t}')
        return f'({c})({found[0]})'

    def write(self, a, t, expression):
        if a == '_': return f'(void)({expression});'
        kind, v = self.kernel.registers.get(a), variable_name(a)
        if kind is None or ('pred' in (t, kind) and t != kind): self.fail(f'destination {a} from {t}')
        if t == kind and t in ('pred', 'f32', 'f64'): return f'{v} = {expression};'
        if size_of(kind) < size_of(t) or ('f' in kind + t and size_of(kind) != size_of(t)): self.fail(f'destination {a} from {t}')
        if kind in ('f32', 'f64'): return f"{v} = {'float' if kind == 'f32' else 'double'}_of(({unsigned(kind)})({expression}));"
        if t in ('f32', 'f64'): return f'{v} = bits_of({expression});'
        return f'{v} = ({unsigned(kind)})({c_type(t)})({expression});'

    def address(self, a):
        """An address as an expression, and the space that a variable in it has."""
        m = re.match(r'\[\s*([^+\]\s]+)\s*(?:\+\s*(-?\w+))?\s*\]$', a)
        if m is None: self.fail('address ' + a)
        base, offset = m.group(1), int(m.group(2) or '0', 0)
        kind = self.kernel.registers.get(base)
        if kind == 'b64': return f'({variable_name(base)} + (uint64_t){offset}ll)', None
        if kind: return f'(uint64_t)(uint32_t)({variable_name(base)} + (uint32_t){offset})', None
        found = self.symbol(base)
        return (f'((uint64_t)({found[0]}) + {offset})', found[1]) if found else (f'((uint64_t){base} + {offset})', None)

    # --- instructions ------------------------------------------------------------------------------------------------
    def only(self, modifiers, known=''):
        for m in modifiers:
            if m not in known.split(): self.fail('modifier .' + m)

    def translate(self, name, mods, all_mods, t, a):
        special = getattr(self, 'do_' + name, None)
        if special: return special(mods, all_mods, t, a)
        if t in ('f32', 'f64') and name in FLOAT: return self.floating(name, mods, t, a)
        if name not in INTEGER or t in ('f32', 'f64') and name != 'selp': self.fail('is not known')
        self.only(mods)
        to, of, expression = INTEGER[name]
        if name == 'not' and t == 'pred': expression = '!{0}'
        values = [self.read(x, t if y == 't' else y) for x, y in zip(a[1:], of)]
        return self.write(a[0], t if to == 't' else to, expression.format(*values, u=unsigned(t), line=self.line))

    def floating(self, name, mods, t, a):
        expression, allowed = FLOAT[name]
        rounding = next((m for m in mods if m in ('rn', 'rz', 'rm', 'rp')), 'rn')
        self.only(mods, allowed.replace('round', 'rn rz rm rp') + ' ftz')
        ftz = 'ftz' in mods
        values = [f'ftz({v})' if ftz else v for v in (self.read(x, t) for x in a[1:])]
        approximate = next((m for m in ('approx', 'full') if m in mods), None)
        if approximate: e = f"ptx_{name}_{approximate}({', '.join(values)})"
        elif name in ('min', 'max'): e = f"ptx_{name}{'_nan' if 'NaN' in mods else ''}({', '.join(values)})"
        else: e = expression.format(*values)
        if expression == '' and not approximate: self.fail('without .approx')
        if rounding != 'rn':
            if t != 'f32': self.fail('rounding of f64')
            e = f"ptx_{'fma' if name == 'mad' else name}_rounded({ {'rz': 'FE_TOWARDZERO', 'rm': 'FE_DOWNWARD', 'rp': 'FE_UPWARD'}[rounding]}, {', '.join(values)})"
        if 'sat' in mods: e = f'saturate({e})'
        return self.write(a[0], t, f'ftz({e})' if ftz else e)

    # control
    def do_bra(self, mods, all_mods, t, a):
        return f'goto {label_name(a[0])};'

    def do_ret(self, mods, all_mods, t, a):
        return 'return;'

    do_exit = do_ret

    def do_trap(self, mods, all_mods, t, a):
        return f'ptx_trap(t, {self.line});'

    def nothing(self, mods, all_mods, t, a):
        return ';'

    do_membar = do_fence = do_prefetch = do_nanosleep = nothing  # one thread runs at a time, and sees all that others wrote

    # moves
    def do_mov(self, mods, all_mods, t, a):
        self.only(mods)
        whole = f'b{8 * size_of(t)}'
        parts = elements(a[0] if a[0].startswith('{') else a[1])
        part = f'b{8 * size_of(t) // len(parts)}'
        shift = 8 * size_of(part)
        if a[0].startswith('{'):
            return f'{{ const {unsigned(t)} x = {self.read(a[1], whole)}; ' + ' '.join(self.write(p, part, f'x >> {shift * i}') for i, p in enumerate(parts)) + ' }'
        if a[1].startswith('{'):
            return self.write(a[0], whole, ' | '.join(f'({unsigned(t)}){self.read(p, part)} << {shift * i}' for i, p in enumerate(parts)))
        return self.write(a[0], t, self.read(a[1], t))

    def do_cvta(self, mods, all_mods, t, a):
        base = {'global': '0', 'shared': 'PTX_SHARED_WINDOW', 'local': 'PTX_LOCAL_WINDOW'}.get(mods[-1].split('::')[0])
        if base is None: self.fail('of another space')
        return self.write(a[0], t, f"{self.read(a[1], 'u64')} {'-' if 'to' in mods else '+'} {base}")

    def memory(self, mods, address, num_bytes, how):
        """Where num_bytes at an address operand are: a pointer p. how: READ, WRITE or ATOMIC."""
        where, of_variable = self.address(address)
        space = next((m.split('::')[0] for m in mods if re.match(r'(global|shared|local|param|const)\b', m)), 'generic')
        self.only([m for m in mods if m.split('::')[0] != space and not m.startswith(('L1::', 'L2::'))], ' '.join(CACHE_HINTS) + ' v2 v4 v8')
        if of_variable == 'param' and how == 'READ': space = 'param'
        if space == 'const' or (space == 'param' and how != 'READ'): self.fail('space')
        local = 'local, sizeof local' if self.kernel.local else 'nullptr, 0'
        if space == 'param': return f'const char* p = ptx_param(t, {where}, {num_bytes}, {self.line});'
        if space == 'local': return f'char* p = ptx_local(t, {local}, {where}, {num_bytes}, {self.line});'
        of = f"<{num_bytes}, PTX_{'READ_ONLY' if 'nc' in mods else how}>"
        if space == 'shared': return f'char* p = ptx_shared{of}(t, {where}, {self.line});'
        return f"static PtxSpan span; char* p = ptx_{space}{of}(t, {local + ', ' if space == 'generic' else ''}{where}, {self.line}, &span);"

    def vector(self, mods, operand):
        parts = elements(operand)
        if len(parts) != int(next((m[1] for m in mods if m in ('v2', 'v4', 'v8')), 1)): self.fail('vector')
        return parts

    def do_ld(self, mods, all_mods, t, a):
        parts, n = self.vector(mods, a[0]), size_of(t)  # all values before any register: the address may be among them
        return (f"{{ {self.memory(mods, a[1], n * len(parts), 'READ')} "
                + ' '.join(f'const {c_type(t)} x{i} = load<{c_type(t)}>(p + {i * n});' for i in range(len(parts)))
                + ' ' + ' '.join(self.write(p, t, f'x{i}') for i, p in enumerate(parts)) + ' }')

    def do_st(self, mods, all_mods, t, a):
        parts, n = self.vector(mods, a[1]), size_of(t)
        return (f"{{ {self.memory(mods, a[0], n * len(parts), 'WRITE')} "
                + ' '.join(f'store<{c_type(t)}>(p + {i * n}, {self.read(p, t)});' for i, p in enumerate(parts)) + ' }')

    def do_cp(self, mods, all_mods, t, a):
        if mods[:1] != ['async']: self.fail('is not known')
        rest = mods[1:]
        if rest == ['wait_all']: return 'ptx_copy_wait(t, -1);'
        if rest == ['commit_group']: return 'ptx_copy_commit(t);'
        if rest == ['wait_group']: return f'ptx_copy_wait(t, {int(a[0])});'
        self.only([m for m in rest if not m.startswith('L2::')], 'ca cg shared shared::cta global')
        if int(a[2]) not in ((16,) if 'cg' in rest else (4, 8, 16)): self.fail('size')
        source = self.read(a[3], 'u32') if len(a) > 3 else a[2]
        return f'{{ static PtxSpan span; ptx_copy(t, {self.address(a[0])[0]}, {self.address(a[1])[0]}, {a[2]}, {source}, {self.line}, &span); }}'

    # integers that are wider than their operands
    def do_mul(self, mods, all_mods, t, a):
        if t in ('f32', 'f64'): return self.floating('mul', mods, t, a)
        self.only(mods, 'lo hi wide')
        bits, sign = 8 * size_of(t), '' if t[0] == 's' else 'u'
        wide = f'{sign}int{2 * bits}_t' if bits < 64 else '__int128' if sign == '' else 'unsigned __int128'
        product = f'({wide})({self.read(a[1], t)}) * ({wide})({self.read(a[2], t)})'
        plus = lambda of: f' + ({unsigned(of)})({self.read(a[3], of)})' if len(a) > 3 else ''
        if 'wide' in mods: return self.write(a[0], f'{t[0]}{2 * bits}', f'(uint{2 * bits}_t)({product}){plus(f"{t[0]}{2 * bits}")}')
        return self.write(a[0], t, f"({unsigned(t)})(({product}) >> {bits if 'hi' in mods else 0}){plus(t)}")

    def do_mad(self, mods, all_mods, t, a):
        return self.floating('fma', mods, t, a) if t in ('f32', 'f64') else self.do_mul(mods, all_mods, t, a)

    def do_shf(self, mods, all_mods, t, a):
        by = self.read(a[3], 'u32')
        by = f'({by} & 31)' if 'wrap' in mods else f'std::min({by}, 32u)'
        low, high = self.read(a[1], 'u32'), self.read(a[2], 'u32')
        return self.write(a[0], 'b32', f"((uint64_t){high} << 32 | {low}) {'<<' if 'l' in mods else '>>'} {by}{' >> 32' if 'l' in mods else ''}")

    # comparisons and conversions
    def do_setp(self, mods, all_mods, t, a):
        self.only(mods[1:], 'ftz and or xor')
        x, y = (f'ftz({v})' if 'ftz' in mods else v for v in (self.read(a[1], t), self.read(a[2], t)))
        how = mods[0]
        if t in ('f32', 'f64'):  # with a NaN: false, but for the unordered relations
            unordered = f'(std::isnan({x}) || std::isnan({y}))'
            e = (unordered if how == 'nan' else f'!{unordered}' if how == 'num' else f'({x} {COMPARE[how[:-1]]} {y} || {unordered})' if how not in COMPARE else
                 f'({x} != {y} && !{unordered})' if how == 'ne' else f'{x} {COMPARE[how]} {y}')
        else:
            e = f'{x} {COMPARE[how]} {y}'
        sign = next(({'and': '&', 'or': '|', 'xor': '^'}[m] for m in mods if m in ('and', 'or', 'xor')), None)
        to = a[0].split('|')
        also = f' {sign} {self.read(a[3], "pred")}' if sign else ''
        return f'{{ const bool x = {e}; ' + self.write(to[0], 'pred', f'(x{also})') + (self.write(to[1], 'pred', f'(!x{also})') if len(to) > 1 else '') + ' }'

    def do_cvt(self, mods, all_mods, t, a):
        to, of = (m for m in all_mods if TYPE.match(m))
        ftz, sat = 'ftz' in mods, 'sat' in mods
        rounding = ''.join(m for m in mods if m not in ('ftz', 'sat'))
        if 'bf16' in to + of:
            if (to, of) == ('f32', 'bf16'): return self.write(a[0], 'f32', f"float_of((uint32_t){self.read(a[1], 'b16')} << 16)")
            if of != 'f32' or rounding != 'rn' or sat: self.fail('bf16')
            first = f"ptx_bf16({self.read(a[1], 'f32')})"
            return self.write(a[0], 'b16', first) if to == 'bf16' else self.write(a[0], 'b32', f"(uint32_t){first} << 16 | ptx_bf16({self.read(a[2], 'f32')})")
        floats = ('f32', 'f64')
        x = self.read(a[1], of)
        if ftz and of == 'f32': x = f'ftz({x})'
        if to in floats:
            if rounding in ('rni', 'rzi', 'rmi', 'rpi'): x = f"ptx_whole({x}, '{rounding[1]}')"
            elif rounding not in (('', 'rn') if of in floats else ('rn',)): self.fail('rounding')
            x = f'({c_type(to)})({x})'
            if sat: x = f'saturate({x})'
            return self.write(a[0], to, f'ftz({x})' if ftz and to == 'f32' else x)
        if of in floats:
            if rounding not in ('rni', 'rzi', 'rmi', 'rpi'): self.fail('rounding')
            return self.write(a[0], to, f"ptx_integer<{c_type(to)}>({x}, '{rounding[1]}')")
        if rounding: self.fail('rounding')
        return self.write(a[0], to, f'ptx_clamp<{c_type(to)}>({x})' if sat else f'({c_type(to)}){x}')

    # warps and blocks
    def do_shfl(self, mods, all_mods, t, a):
        if mods[0] != 'sync' or t != 'b32': self.fail('is not known')
        to = a[0].split('|')
        values = ', '.join(self.read(x, 'b32') for x in a[1:])
        return (f'{{ bool valid; const uint32_t x = ptx_shuffle(t, PTX_{mods[1].upper()}, {values}, &valid, {self.line}); ' + self.write(to[0], 'b32', 'x')
                + (self.write(to[1], 'pred', 'valid') if len(to) > 1 else '') + ' }')

    def do_vote(self, mods, all_mods, t, a):
        if mods[0] != 'sync': self.fail('is not known')
        e = {'ballot': 'x.ballot', 'any': 'x.ballot != 0', 'all': 'x.ballot == x.members', 'uni': 'x.ballot == 0 || x.ballot == x.members'}[mods[1]]
        return f"{{ const PtxVote x = ptx_vote(t, PTX_{mods[1].upper()}, {self.read(a[1], 'pred')}, {self.read(a[2], 'b32')}, {self.line}); {self.write(a[0], t, e)} }}"

    def do_redux(self, mods, all_mods, t, a):
        return self.write(a[0], t, f"ptx_redux<{c_type(t)}>(t, PTX_{mods[1].upper()}, {self.read(a[1], t)}, {self.read(a[2], 'b32')}, {self.line})")

    def do_bar(self, mods, all_mods, t, a):
        if mods == ['warp', 'sync']: return f"ptx_warp_sync(t, {self.read(a[0], 'b32')}, {self.line});"
        mods = [m for m in mods if m not in ('cta', 'aligned')]
        if mods == ['sync']: return f"ptx_barrier(t, {self.read(a[0], 'u32')}, {self.read(a[1], 'u32') if len(a) > 1 else 0}, false, {self.line});"
        if mods[0] != 'red': self.fail('is not known')
        e = {'popc': 'x.count', 'and': 'x.count == x.threads', 'or': 'x.count != 0'}[mods[1]]
        threads = self.read(a[2], 'u32') if len(a) > 3 else 0
        return f"{{ const PtxBarrier x = ptx_barrier(t, {self.read(a[1], 'u32')}, {threads}, {self.read(a[-1], 'pred')}, {self.line}); {self.write(a[0], t, e)} }}"

    do_barrier = do_bar

    def do_atom(self, mods, all_mods, t, a):
        how = next((m for m in mods if m in ('add', 'min', 'max', 'and', 'or', 'xor', 'exch', 'cas')), None)
        if how is None: self.fail('is not known')
        place = self.memory([m for m in mods if m not in (how, 'noftz')], a[1], size_of(t), 'ATOMIC')
        return f"{{ {place} " + self.write(a[0], t, f"ptx_atomic<{c_type(t)}>(p, PTX_{how.upper()}, {', '.join(self.read(v, t) for v in a[2:])})") + ' }'

    def do_red(self, mods, all_mods, t, a):
        return self.do_atom(mods, all_mods, t, ['_'] + a)

    def do_mma(self, mods, all_mods, t, a):
        if self.op != 'mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32': self.fail('is not known')
        d, x, y, c = (elements(v) for v in a)
        if (len(d), len(x), len(y), len(c)) != (4, 4, 2, 4): self.fail('fragments')
        return (f"{{ const uint32_t a[4] = {{{', '.join(self.read(v, 'b32') for v in x)}}}, b[2] = {{{', '.join(self.read(v, 'b32') for v in y)}}}; "
                f"const float c[4] = {{{', '.join(self.read(v, 'f32') for v in c)}}}; float d[4]; ptx_mma(t, d, a, b, c, {self.line}); "
                + ' '.join(self.write(v, 'f32', f'd[{i}]') for i, v in enumerate(d)) + ' }')

    def do_ldmatrix(self, mods, all_mods, t, a):
        self.only([m for m in mods if m != 'shared::cta'], 'sync aligned m8n8 x1 x2 x4 trans shared')
        d = elements(a[0])
        if f'x{len(d)}' not in mods or t != 'b16': self.fail('fragments')
        return (f"{{ uint32_t d[4]; ptx_ldmatrix(t, d, {len(d)}, {str('trans' in mods).lower()}, {self.address(a[1])[0]}, {self.line}); "
                + ' '.join(self.write(v, 'b32', f'd[{i}]') for i, v in enumerate(d)) + ' }')

    # --- output ------------------------------------------------------------------------------------------------------
    def text(self, path):
        # (of what is inlined from CUDA's headers, where it is called: nvcc gives that place first)
        out = ['// made by translate.py\n#include "test/ptx/ptx.h"\n',
               'static const PtxPlace places[] = {', ', '.join(f'{{{line}, "{self.sources[file]}", {at}}}' for line, file, at in self.places if '/include/' not in self.sources[file]) or '{0, "", 0}', '};\n']
        table = lambda kind, name, rows: out.append(f"static const {kind} {name}[] = {{{', '.join(rows) or '{}'}}};\n")
        for i, k in enumerate(self.kernels):
            body = '\n    '.join(k.body)
            used = set(re.findall(r'\bv_\w+', body))
            table('PtxBlock', f'blocks_{i}', [f"{{{line}, {{{', '.join(f'{c.get(kind, 0)}' for kind in ('MEMORY', 'MMA', 'SHUFFLE', 'BARRIER', 'FLOAT', 'OTHER'))}}}}}" for line, c in k.blocks])
            table('PtxVariable', f'params_{i}', [f'{{{begin}, {num_bytes}, 0}}' for begin, num_bytes in k.params.values()])
            table('PtxVariable', f'shared_{i}', [f'{{0, {num_bytes}, {align}}}' for _, align, num_bytes in k.shared])
            # Not optimized, unlike what it calls: half the time to compile, a quarter more to run the kernels' tests.
            out.append(f'static uint64_t counts_{i}[{len(k.blocks) + 1}];\n#define COUNT(i) counts_{i}[i]++\n'
                       f'__attribute__((optimize("O0"))) static void run_{i}(PtxThread* __restrict t) {{  // {k.name}\n')
            at = 0
            for _, align, num_bytes in k.local: at = (at + align - 1) // align * align + num_bytes
            if at > 0: out.append(f'    alignas(16) char local[{at}];\n')
            names = {}
            for register, kind in k.registers.items():
                if variable_name(register) in used: names.setdefault(kind, []).append(variable_name(register))
            out += [f"    {c_type(kind)} {', '.join(v)};\n" for kind, v in names.items()]
            out.append(f'    {body}\n}}\n#undef COUNT\n')
            out.append(f'static PtxKernel kernel_{i} = {{"{k.name}", "{path}", run_{i}, {k.max_threads}, {k.exact_threads}, {k.dynamic_align}, '
                       f'params_{i}, {len(k.params)}, shared_{i}, {len(k.shared)}, blocks_{i}, counts_{i}, {len(k.blocks)}, places, {len(self.places)}}};\n'
                       f'static const PtxRegister register_{i}(&kernel_{i});\n\n')
        return ''.join(out)


def main():
    if len(sys.argv) != 3: sys.exit(__doc__)
    try:
        text = Translator(open(sys.argv[1]).read()).text(sys.argv[1])
    except Unknown as e:
        sys.exit(f'{sys.argv[1]}: {e}')
    with open(sys.argv[2], 'w') as out: out.write(text)


main()
