/* Unpacks zstd frames (RFC 8878), without dictionaries. It is its own so that a cut library needs nothing but the hook, and
 * so that a handler of signals may call it: no memory is asked for. Whatever the bytes are, nothing is read or written
 * outside of what was given. */
#include "hook.h"

#include <string.h>

enum { MAX_BLOCK = 128 << 10, MAX_LITERALS = MAX_BLOCK, HUFFMAN_BITS = 11, MAX_WEIGHTS = 256 };
enum { LITERAL_LENGTHS, OFFSETS, MATCH_LENGTHS, TABLES };
enum { ACCURACY = 9, MAX_SYMBOLS = 64, SLACK = 32 };

struct cell { /* of a table of finite state entropy */
    uint16_t base;
    uint8_t symbol, bits;
};
struct table {
    struct cell cells[1 << ACCURACY];
    int log; /* -1: there is none */
};
static struct {
    struct table tables[TABLES], weights;
    uint16_t huffman[1 << HUFFMAN_BITS]; /* symbol, then its bits in the upper half */
    int huffman_log;                     /* 0: there is none */
    uint64_t repeated[3];
    uint8_t literals[MAX_LITERALS + SLACK];
} state;

/* --- bits, read from the last one on */

struct bits {
    const uint8_t *start;
    int64_t left;
};

static uint64_t ones(int count) { return count >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1; }

/* Needs a few readable bytes behind the stream, which all callers have; what is before its start is zero. */
static inline uint64_t look(const struct bits *bits, int count) {
    int64_t from = bits->left - count;
    if (from >= 0) return tt_u64(bits->start + (from >> 3)) >> (from & 7) & ones(count);
    return bits->left <= 0 ? 0 : (tt_u64(bits->start) & ones((int)bits->left)) << (count - bits->left);
}

static inline uint64_t take(struct bits *bits, int count) {
    uint64_t value = look(bits, count);
    bits->left -= count;
    return value;
}

/* The last byte has a one before the first bit. */
static int open_bits(struct bits *bits, const uint8_t *from, size_t size) {
    if (!size || !from[size - 1]) return 0;
    *bits = (struct bits){from, (int64_t)size * 8 - 1 - (__builtin_clz(from[size - 1]) - 24)};
    return 1;
}

/* --- finite state entropy */

static int make_table(struct table *table, const int16_t *counts, int symbols, int log) {
    int size = 1 << log, high = size - 1, mask = size - 1, step = (size >> 1) + (size >> 3) + 3, at = 0;
    uint16_t next[MAX_WEIGHTS];
    for (int s = 0; s < symbols; s++) {
        next[s] = (uint16_t)(counts[s] < 0 ? 1 : counts[s]);
        if (counts[s] < 0) table->cells[high--].symbol = (uint8_t)s;
    }
    for (int s = 0; s < symbols; s++)
        for (int i = 0; i < counts[s]; i++) {
            table->cells[at].symbol = (uint8_t)s;
            do at = (at + step) & mask;
            while (at > high);
        }
    if (at) return 0;
    for (int i = 0; i < size; i++) {
        struct cell *cell = &table->cells[i];
        unsigned state_ = next[cell->symbol]++;
        if (!state_) return 0;
        cell->bits = (uint8_t)(log - (31 - __builtin_clz(state_)));
        cell->base = (uint16_t)((state_ << cell->bits) - (unsigned)size);
    }
    table->log = log;
    return 1;
}

/* Reads the description of a table, from the first bit on. Its size, or 0. */
static size_t read_table(struct table *table, const uint8_t *from, size_t size, int symbols, int most) {
    int16_t counts[MAX_WEIGHTS] = {0};
    size_t bit = 0, room = size * 8;
    uint8_t copy[8];
#define PEEK(into)                                                                                                     \
    do {                                                                                                               \
        size_t byte_ = bit >> 3, left_ = byte_ < size ? size - byte_ : 0;                                              \
        memset(copy, 0, sizeof copy);                                                                                  \
        memcpy(copy, from + (left_ ? byte_ : 0), left_ < 8 ? left_ : 8);                                               \
        into = tt_u64(copy) >> (bit & 7);                                                                              \
    } while (0)
    uint64_t word;
    PEEK(word);
    int log = (int)(word & 15) + 5, symbol = 0;
    bit += 4;
    if (log > most) return 0;
    int left = 1 << log;
    while (left > 0 && symbol < symbols) {
        int width = 32 - __builtin_clz((unsigned)left + 1); /* bits of left + 1 */
        int low = (1 << width) - 1 - (left + 1), value;
        PEEK(word);
        int small = (int)(word & ones(width - 1));
        if (small < low) {
            value = small;
            bit += (size_t)width - 1;
        } else {
            value = (int)(word & ones(width));
            if (value >= 1 << (width - 1)) value -= low;
            bit += (size_t)width;
        }
        int count = value - 1;
        left -= count < 0 ? 1 : count;
        counts[symbol++] = (int16_t)count;
        while (!count) {
            PEEK(word);
            int more = (int)(word & 3);
            bit += 2;
            symbol += more;
            if (symbol > symbols) return 0;
            if (more < 3) break;
        }
    }
#undef PEEK
    if (left || bit > room || !make_table(table, counts, symbol, log)) return 0;
    return (bit + 7) / 8;
}

/* --- literals */

static int make_huffman(uint8_t *weights, int count) {
    unsigned sum = 0, at = 0, starts[HUFFMAN_BITS + 2] = {0};
    for (int i = 0; i < count; i++) {
        if (weights[i] > HUFFMAN_BITS) return 0;
        sum += weights[i] ? 1u << (weights[i] - 1) : 0;
    }
    if (!sum) return 0;
    int log = 32 - __builtin_clz(sum);
    unsigned rest = (1u << log) - sum;
    if (log > HUFFMAN_BITS || rest & (rest - 1)) return 0;
    weights[count++] = (uint8_t)(32 - __builtin_clz(rest));
    for (int weight = 1; weight <= log; weight++) {
        starts[weight] = at;
        for (int i = 0; i < count; i++) at += weights[i] == weight ? 1u << (weight - 1) : 0;
    }
    if (at != 1u << log) return 0;
    for (int i = 0; i < count; i++) {
        if (!weights[i]) continue;
        unsigned length = 1u << (weights[i] - 1), *start = &starts[weights[i]];
        for (unsigned k = 0; k < length; k++)
            state.huffman[*start + k] = (uint16_t)(i | (log + 1 - weights[i]) << 8);
        *start += length;
    }
    state.huffman_log = log;
    return 1;
}

/* The size of the description of the literals' code, or 0. */
static size_t read_huffman(const uint8_t *from, size_t size) {
    uint8_t weights[MAX_WEIGHTS + 2] = {0};
    int count = 0;
    if (!size) return 0;
    size_t length = from[0];
    if (length >= 128) {
        count = (int)length - 127;
        length = ((size_t)count + 1) / 2;
        if (length + 1 > size) return 0;
        for (int i = 0; i < count; i++) weights[i] = i & 1 ? from[1 + i / 2] & 15 : from[1 + i / 2] >> 4;
    } else {
        if (length + 1 > size) return 0;
        enum { WEIGHT_LOG = 6, WEIGHT_SYMBOLS = 16 };
        size_t used = read_table(&state.weights, from + 1, length, WEIGHT_SYMBOLS, WEIGHT_LOG);
        struct bits bits;
        if (!used || used >= length || !open_bits(&bits, from + 1 + used, length - used)) return 0;
        const struct cell *cells = state.weights.cells;
        unsigned states[2];
        for (int i = 0; i < 2; i++) states[i] = (unsigned)take(&bits, state.weights.log);
        if (bits.left < 0) return 0;
        for (int turn = 0;; turn ^= 1) {
            const struct cell *cell = &cells[states[turn]];
            if (count >= MAX_WEIGHTS - 2) return 0;
            weights[count++] = cell->symbol;
            if (bits.left < cell->bits) { /* the other state is the last */
                weights[count++] = cells[states[turn ^ 1]].symbol;
                break;
            }
            states[turn] = cell->base + (unsigned)take(&bits, cell->bits);
        }
    }
    return count < MAX_WEIGHTS && make_huffman(weights, count) ? length + 1 : 0;
}

static int decode_stream(uint8_t *into, size_t count, const uint8_t *from, size_t size) {
    struct bits bits;
    int log = state.huffman_log;
    if (!open_bits(&bits, from, size)) return 0;
    size_t i = 0;
    enum { WORD = 57, TURN = WORD / HUFFMAN_BITS }; /* bits that an unaligned word has at least; symbols in them */
    for (; i + TURN <= count && bits.left >= 64; i += TURN) {
        int64_t from_bit = bits.left - WORD;
        uint64_t word = tt_u64(bits.start + (from_bit >> 3)) >> (from_bit & 7);
        int at = WORD - log;
        for (size_t k = 0; k < TURN; k++) {
            unsigned symbol = state.huffman[word >> at & ones(log)];
            into[i + k] = (uint8_t)symbol;
            at -= (int)(symbol >> 8);
        }
        bits.left -= WORD - log - at;
    }
    for (; i < count; i++) {
        unsigned symbol = state.huffman[look(&bits, log)];
        into[i] = (uint8_t)symbol;
        bits.left -= symbol >> 8;
    }
    return !bits.left;
}

/* The literals of a block go to state.literals. The size of what describes them, or 0. */
static size_t read_literals(const uint8_t *from, size_t size, size_t *count) {
    if (!size) return 0;
    int kind = from[0] & 3, format = from[0] >> 2 & 3;
    uint8_t start[8] = {0};
    memcpy(start, from, size < 5 ? size : 5);
    uint64_t word = tt_u64(start);
    if (kind < 2) { /* as they are, or one byte again and again */
        size_t header = format == 1 ? 2 : format == 3 ? 3 : 1;
        size_t length = format == 1 ? word >> 4 & 0xFFF : format == 3 ? word >> 4 & 0xFFFFF : word >> 3 & 0x1F;
        size_t stored = kind ? 1 : length;
        if (length > MAX_LITERALS || header + stored > size) return 0;
        if (kind) memset(state.literals, from[header], length);
        else memcpy(state.literals, from + header, length);
        *count = length;
        return header + stored;
    }
    int width = format < 2 ? 10 : format == 2 ? 14 : 18;
    size_t header = format < 2 ? 3 : (size_t)format + 2;
    size_t length = word >> 4 & ones(width), stored = word >> (4 + width) & ones(width);
    if (length > MAX_LITERALS || header + stored > size || !length) return 0;
    const uint8_t *at = from + header, *end = at + stored;
    if (kind == 2) {
        size_t used = read_huffman(at, stored);
        if (!used) return 0;
        at += used;
    }
    if (!state.huffman_log) return 0;
    *count = length;
    if (!format) return decode_stream(state.literals, length, at, (size_t)(end - at)) ? header + stored : 0;
    size_t each = (length + 3) / 4;
    if (end - at < 6 || 3 * each > length) return 0;
    const uint8_t *jump = at;
    at += 6;
    for (int i = 0; i < 4; i++) {
        size_t part = i < 3 ? tt_u16(jump + 2 * i) : (size_t)(end - at);
        if (part > (size_t)(end - at)) return 0;
        if (!decode_stream(state.literals + (size_t)i * each, i < 3 ? each : length - 3 * each, at, part)) return 0;
        at += part;
    }
    return header + stored;
}

/* --- sequences */

static const int16_t default_counts[TABLES][53] = {
    {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1},
    {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1},
    {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1},
};
static const int default_log[TABLES] = {6, 5, 6}, most_log[TABLES] = {9, 8, 9}, code_count[TABLES] = {36, 32, 53};
static const int default_codes[TABLES] = {36, 29, 53};
static const uint32_t length_base[36] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  11,  12,   13,   14,   15,   16,    18,
                                         20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
static const uint8_t length_bits[36] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  1,  1,
                                        1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint32_t match_base[53] = {3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16,  17,  18,  19,   20,
                                        21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34,  35,  37,  39,   41,
                                        43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539};
static const uint8_t match_bits[53] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
                                       0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/* The size of the description of a table of codes; -1 where it is damaged. */
static int64_t read_codes(int which, int mode, const uint8_t *from, size_t size) {
    struct table *table = &state.tables[which];
    if (mode == 0) {
        make_table(table, default_counts[which], default_codes[which], default_log[which]);
        return 0;
    }
    if (mode == 1) {
        if (!size || from[0] >= code_count[which]) return -1;
        table->cells[0] = (struct cell){0, from[0], 0};
        table->log = 0;
        return 1;
    }
    if (mode == 2) {
        size_t used = read_table(table, from, size, code_count[which], most_log[which]);
        return used ? (int64_t)used : -1;
    }
    return table->log < 0 ? -1 : 0;
}

static uint64_t offset_of(uint64_t value, uint64_t literals) {
    uint64_t *repeated = state.repeated, offset;
    if (value > 3) {
        offset = value - 3;
        repeated[2] = repeated[1];
        repeated[1] = repeated[0];
        return repeated[0] = offset;
    }
    unsigned index = (unsigned)value - 1 + !literals;
    if (!index) return repeated[0];
    offset = index < 3 ? repeated[index] : repeated[0] - 1;
    if (index > 1) repeated[2] = repeated[1];
    repeated[1] = repeated[0];
    return repeated[0] = offset;
}

/* Sixteen bytes at a time, where that many more may be read and written. */
static inline void copy(uint8_t *at, const uint8_t *from, uint64_t length, const uint8_t *end) {
    if ((uint64_t)(end - at) < length + 16) {
        memcpy(at, from, length);
        return;
    }
    uint64_t done = 0;
    do memcpy(at + done, from + done, 16);
    while ((done += 16) < length);
}

static inline void copy_match(uint8_t *at, uint64_t offset, uint64_t length, const uint8_t *end) {
    const uint8_t *from = at - offset;
    if (offset >= 16 && (uint64_t)(end - at) >= length + 16) {
        copy(at, from, length, end);
        return;
    }
    if (offset == 1) memset(at, *from, length);
    else
        for (uint64_t i = 0; i < length; i++) at[i] = from[i];
}

/* One compressed block. What it unpacks to, or -1. */
static int64_t read_block(uint8_t *start, uint8_t *into, const uint8_t *end, const uint8_t *from, size_t size) {
    size_t literals = 0, used = read_literals(from, size, &literals);
    if (!used || used >= size) return -1;
    const uint8_t *at = from + used, *stop = from + size, *literal = state.literals;
    size_t sequences = *at++;
    if (sequences >= 128) {
        if (sequences == 255) {
            if (stop - at < 2) return -1;
            sequences = tt_u16(at) + 0x7F00u;
            at += 2;
        } else {
            if (at == stop) return -1;
            sequences = (sequences - 128) << 8 | *at++;
        }
    }
    uint8_t *out = into;
    if (sequences) {
        if (at == stop) return -1;
        int modes = *at++;
        if (modes & 3) return -1;
        for (int which = 0; which < TABLES; which++) {
            int64_t table = read_codes(which, modes >> (6 - 2 * which) & 3, at, (size_t)(stop - at));
            if (table < 0) return -1;
            at += table;
        }
        struct bits bits;
        unsigned states[TABLES];
        if (!open_bits(&bits, at, (size_t)(stop - at))) return -1;
        for (int which = 0; which < TABLES; which++) states[which] = (unsigned)take(&bits, state.tables[which].log);
        for (size_t i = 0; i < sequences; i++) {
            const struct cell *cells[TABLES];
            for (int which = 0; which < TABLES; which++) cells[which] = &state.tables[which].cells[states[which]];
            int offset_code = cells[OFFSETS]->symbol, match_code = cells[MATCH_LENGTHS]->symbol;
            int length_code = cells[LITERAL_LENGTHS]->symbol;
            uint64_t value = (UINT64_C(1) << offset_code) + take(&bits, offset_code);
            uint64_t match = match_base[match_code] + take(&bits, match_bits[match_code]);
            uint64_t length = length_base[length_code] + take(&bits, length_bits[length_code]);
            if (bits.left < 0) return -1;
            if (i + 1 < sequences) {
                static const int order[TABLES] = {LITERAL_LENGTHS, MATCH_LENGTHS, OFFSETS};
                for (int k = 0; k < TABLES; k++)
                    states[order[k]] = cells[order[k]]->base + (unsigned)take(&bits, cells[order[k]]->bits);
                if (bits.left < 0) return -1;
            }
            uint64_t offset = offset_of(value, length);
            if (length > literals || length + match > (uint64_t)(end - out)) return -1;
            copy(out, literal, length, end);
            out += length;
            literal += length;
            literals -= length;
            if (!offset || offset > (uint64_t)(out - start)) return -1;
            copy_match(out, offset, match, end);
            out += match;
        }
        if (bits.left) return -1;
    } else if (at != stop) {
        return -1;
    }
    if (literals > (size_t)(end - out)) return -1;
    memcpy(out, literal, literals);
    return out + literals - into;
}

size_t tt_unzstd(uint8_t *into, size_t room, const uint8_t *from, size_t size) {
    static const uint8_t id_sizes[4] = {0, 1, 2, 4}, content_sizes[4] = {0, 2, 4, 8};
    const uint8_t *at = from + 4, *stop = from + size;
    if (size < 6 || tt_u32(from) != 0xFD2FB528) return 0;
    uint8_t about = *at++;
    int single = about >> 5 & 1, content = content_sizes[about >> 6];
    if (single && !content) content = 1;
    if (about & 8 || id_sizes[about & 3] || stop - at < !single + content) return 0;
    at += !single + content;
    for (int which = 0; which < TABLES; which++) state.tables[which].log = -1;
    state.huffman_log = 0;
    state.repeated[0] = 1;
    state.repeated[1] = 4;
    state.repeated[2] = 8;
    uint8_t *out = into, *end = into + room;
    for (int last = 0; !last;) {
        if (stop - at < 3) return 0;
        uint32_t header = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16;
        at += 3;
        last = header & 1;
        size_t length = header >> 3, kind = header >> 1 & 3, stored = kind == 1 ? 1 : length;
        if (kind == 3 || length > MAX_BLOCK || stored > (size_t)(stop - at)) return 0;
        if (kind < 2 && length > (size_t)(end - out)) return 0;
        if (kind == 0) memcpy(out, at, length);
        if (kind == 1) memset(out, *at, length);
        int64_t made = kind < 2 ? (int64_t)length : read_block(into, out, end, at, stored);
        if (made < 0) return 0;
        out += made;
        at += stored;
    }
    return stop - at == (about & 4 ? 4 : 0) ? (size_t)(out - into) : 0;
}
