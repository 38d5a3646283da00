/*
rewrite.c -- makes a .cu file C++: reads one, writes what g++ can compile to stdout. Lines stay where they
are.

    kernel<8><<<grid, block, bytes, stream>>>(x, n);
 -> emu::launch("kernel<8>", emu::Config(grid, block, bytes, stream), EMU_KERNEL(kernel<8>), x, n);

    extern __shared__ __align__(16) float tile[];
 -> float* tile = reinterpret_cast<float*>(emu::dynamic_shared());

    __shared__ float sums[32], all;
 -> __shared__ float sums[32], all; EMU_SHARED(sums) EMU_SHARED(all)           (NaN bytes for every block)

    #pragma unroll 4   ->   (nothing)

Everything is found in a copy of the text in which comments and literals are blank. Included files are not
rewritten.
*/
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* path;
static char* text;  // of the file
static char* mask;  // the same, comments and literals blank
static size_t length;

static void die_at(size_t at, const char* what) {
    int line = 1;
    for (size_t i = 0; i < at && i < length; i++) { line += text[i] == '\n'; }
    fprintf(stderr, "%s:%d: %s ---> test/cuda_emu/rewrite.c knows only plain forms\n", path, line, what);
    exit(1);
}

static void read_file(void) {
    FILE* file = fopen(path, "rb");
    size_t capacity = 1 << 16;
    if (file == NULL || (text = malloc(capacity)) == NULL) {
        perror(path);
        exit(1);
    }
    for (size_t got; (got = fread(text + length, 1, capacity - length - 1, file)) > 0;) {
        length += got;
        if (length + 1 == capacity && (text = realloc(text, capacity *= 2)) == NULL) { exit(1); }
    }
    fclose(file);
    text[length] = '\0';
}

// --- the mask --------------------------------------------------------------------------------
static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static bool starts(const char* s, size_t at, const char* word) {
    return strncmp(s + at, word, strlen(word)) == 0;
}

// Behind the comment or literal that begins at i; i where none does.
static size_t skip_blank(size_t i) {
    if (starts(text, i, "//")) {
        while (i < length && (text[i] != '\n' || text[i - 1] == '\\')) { i++; }
        return i;
    }
    if (starts(text, i, "/*")) {
        const char* end = strstr(text + i + 2, "*/");
        return end == NULL ? length : (size_t)(end - text) + 2;
    }
    if (starts(text, i, "R\"") && (i == 0 || !is_word(text[i - 1]))) {
        char end[32];
        const size_t name = strcspn(text + i + 2, "(");
        if (name < 17) {
            snprintf(end, sizeof end, ")%.*s\"", (int)name, text + i + 2);
            const char* found = strstr(text + i, end);
            return found == NULL ? length : (size_t)(found - text) + strlen(end);
        }
    }
    const bool digit_separator = text[i] == '\'' && i > 0 && isxdigit((unsigned char)text[i - 1]);
    if (text[i] == '"' || (text[i] == '\'' && !digit_separator)) {
        const char quote = text[i++];
        while (i < length && text[i] != quote && text[i] != '\n') { i += text[i] == '\\' ? 2 : 1; }
        return i < length ? i + 1 : length;
    }
    return i;
}

static void make_mask(void) {
    mask = malloc(length + 1);
    if (mask == NULL) { exit(1); }
    memcpy(mask, text, length + 1);
    for (size_t i = 0; i < length;) {
        const size_t end = skip_blank(i);
        for (size_t k = i; k < end; k++) {
            if (mask[k] != '\n') { mask[k] = ' '; }
        }
        i = end > i ? end : i + 1;
    }
}

// --- looking around in the mask --------------------------------------------------------------
static size_t skip_space(size_t i) {
    while (i < length && (isspace((unsigned char)mask[i]) || mask[i] == '\\')) { i++; }
    return i;
}

static bool is_token(size_t i, const char* word) {
    return starts(mask, i, word) && !is_word(mask[i + strlen(word)]) && (i == 0 || !is_word(mask[i - 1]));
}

// The bracket that closes the one at i.
static size_t closing(size_t i) {
    int depth = 0;
    const size_t begin = i;
    for (; i < length; i++) {
        depth += strchr("([{", mask[i]) != NULL;
        depth -= strchr(")]}", mask[i]) != NULL;
        if (depth == 0) { return i; }
    }
    die_at(begin, "a bracket is not closed");
    return length;
}

// The first of `stop` from i on that stands outside brackets.
static size_t find_outside(size_t i, const char* stop) {
    const size_t begin = i;
    for (; i < length; i++) {
        if (starts(mask, i, stop)) { return i; }
        if (strchr("([{", mask[i]) != NULL) { i = closing(i); }
    }
    die_at(begin, "the end of a statement is missing");
    return length;
}

// Where the name that ends before `end` begins: ns::kernel<...>.
static size_t name_begin(size_t end) {
    size_t i = end;
    while (i > 0 && isspace((unsigned char)mask[i - 1])) { i--; }
    if (i > 0 && mask[i - 1] == '>') {
        int depth = 0, round = 0;
        do {
            if (i == 0) { die_at(end, "template arguments without a beginning"); }
            i--;
            round += (mask[i] == ')') - (mask[i] == '(');
            if (round == 0) { depth += (mask[i] == '>' && mask[i - 1] != '-') - (mask[i] == '<'); }
        } while (depth > 0);
        while (i > 0 && isspace((unsigned char)mask[i - 1])) { i--; }
    }
    while (i > 0 && (is_word(mask[i - 1]) || mask[i - 1] == ':')) { i--; }
    return i;
}

// --- writing ---------------------------------------------------------------------------------
static void put(size_t begin, size_t end) {
    fwrite(text + begin, 1, end - begin, stdout);
}

static void put_newlines(size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        if (text[i] == '\\' && text[i + 1] == '\n') { putchar('\\'); }
        if (text[i] == '\n') { putchar('\n'); }
    }
}

// As the words of a string or of code on one line.
static void put_squeezed(size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        if (!isspace((unsigned char)mask[i]) && mask[i] != '\\') { putchar(mask[i]); }
    }
}

static size_t trimmed(size_t begin, size_t end) {
    while (end > begin && isspace((unsigned char)mask[end - 1])) { end--; }
    return end;
}

// `from` is what is not written yet, `at` the <<<; returns behind the launch.
static size_t rewrite_launch(size_t from, size_t at) {
    const size_t name = name_begin(at), name_end = trimmed(name, at);
    if (name == name_end || name < from) { die_at(at, "<<< without a kernel's name before it"); }
    const size_t config_end = find_outside(at + 3, ">>>"), open = skip_space(config_end + 3);
    if (mask[open] != '(') { die_at(at, "no ( behind >>>"); }
    const size_t close = closing(open);
    put(from, name);
    printf("emu::launch(\"");
    put_squeezed(name, name_end);
    printf("\", emu::Config(");
    put(at + 3, config_end);
    printf("), EMU_KERNEL(");
    put(name, name_end);
    put_newlines(config_end, open);
    printf(skip_space(open + 1) < close ? "), " : ")");
    put(open + 1, close + 1);
    return close + 1;
}

// extern __shared__ T x[]; begins at `at`.
static size_t rewrite_extern(size_t at) {
    const size_t end = find_outside(at, ";");
    size_t bracket = at, type = 0;
    for (; bracket < end && mask[bracket] != '['; bracket++) {
        if (mask[bracket] == '(') { bracket = closing(bracket); }  // of __align__(16)
    }
    if (bracket == end) { die_at(at, "extern __shared__ without []"); }
    size_t name_end = trimmed(at, bracket), name = name_end;
    while (is_word(mask[name - 1])) { name--; }
    char words[512];
    size_t num_chars = 0;
    for (size_t i = at; i < name; i++) {  // the type: what is left without qualifiers
        static const char* const qualifiers[] = {"extern", "__shared__", "__align__", "alignas", "volatile"};
        for (size_t k = 0; k < sizeof qualifiers / sizeof *qualifiers; k++) {
            if (!is_token(i, qualifiers[k])) { continue; }
            i += strlen(qualifiers[k]);
            if (mask[skip_space(i)] == '(') { i = closing(skip_space(i)) + 1; }
            break;
        }
        if (i < name && num_chars + 1 < sizeof words) {
            words[num_chars++] = mask[i] == '\n' ? ' ' : mask[i];
        }
    }
    while (num_chars > 0 && isspace((unsigned char)words[num_chars - 1])) { num_chars--; }
    while (type < num_chars && isspace((unsigned char)words[type])) { type++; }
    const int type_chars = (int)(num_chars - type);
    printf("%.*s* ", type_chars, words + type);
    put(name, name_end);
    printf(" = reinterpret_cast<%.*s*>(emu::dynamic_shared())", type_chars, words + type);
    put_newlines(at, end);
    return end;
}

// __shared__ T x[8], y; begins at `at`: written as it is, followed by EMU_SHARED for each variable.
static size_t rewrite_shared(size_t at) {
    const size_t end = find_outside(at, ";");
    put(at, end + 1);
    int angle = 0;
    size_t name = 0, name_end = 0;  // the last word before [ , = or ;
    bool named = false;
    for (size_t i = at; i <= end; i++) {
        if (mask[i] == '(' || mask[i] == '{') { i = closing(i); }
        angle += (mask[i] == '<') - (mask[i] == '>');
        if (is_word(mask[i]) && !is_word(mask[i - 1])) {
            if (!named) { name = i; }
            for (name_end = named ? name_end : i; !named && is_word(mask[name_end]);) { name_end++; }
        }
        if (angle == 0 && (mask[i] == '[' || mask[i] == '=')) {
            named = true;
            if (mask[i] == '[') { i = closing(i); }
        }
        if (angle == 0 && (mask[i] == ',' || i == end)) {
            printf(" EMU_SHARED(%.*s)", (int)(name_end - name), text + name);
            named = false;
        }
    }
    return end + 1;
}

// A line of a macro keeps its backslash.
static size_t skip_unroll(size_t at) {
    while (at < length && mask[at] != '\n') { at++; }
    return at;
}

static bool is_unroll(size_t at) {
    if (mask[at] != '#') { return false; }
    const size_t pragma = skip_space(at + 1);
    return is_token(pragma, "pragma") &&
           (is_token(skip_space(pragma + 6), "unroll") || is_token(skip_space(pragma + 6), "nounroll"));
}

static void rewrite(void) {
    size_t from = 0;
    printf("#line 1 \"%s\"\n", path);
    for (size_t i = 0; i < length;) {
        if (starts(mask, i, "<<<")) {
            i = from = rewrite_launch(from, i);
        } else if (is_token(i, "extern")) {
            size_t shared = i;  // in the same declaration?
            while (shared < length && strchr(";{", mask[shared]) == NULL && !is_token(shared, "__shared__")) {
                shared++;
            }
            if (!is_token(shared, "__shared__")) {
                i += 6;
                continue;
            }
            put(from, i);
            i = from = rewrite_extern(i);
        } else if (is_token(i, "__shared__")) {
            put(from, i);
            i = from = rewrite_shared(i);
        } else if (is_unroll(i)) {
            put(from, i);
            i = from = skip_unroll(i);
        } else {
            i++;
        }
    }
    put(from, length);
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: rewrite file.cu >file.cpp\n");
        return 2;
    }
    path = argv[1];
    read_file();
    make_mask();
    rewrite();
    return fflush(stdout) == 0 ? 0 : 1;
}
