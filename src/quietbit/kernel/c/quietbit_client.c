/* A client without Python: quietbit_client.h. The arithmetic is that of `Mechanism.write` in Python, bit for bit. */
#include "quietbit_client.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif
#if !defined(__wasm__) || defined(QB_HOSTED)
#include <string.h>
#else
#undef memcpy
#undef memset
#define memcpy __builtin_memcpy
#define memset __builtin_memset
#define memcmp compare_bytes
static int compare_bytes(const void *a, const void *b, size_t count) {
    const uint8_t *left = a, *right = b;
    for (size_t i = 0; i < count; i++) {
        if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
    }
    return 0;
}
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

static const char MAGIC[8] = {'Q', 'B', 'T', 'A', 'B', 'L', 'E', 1};
static const char LEDGER[] = "quietbit-ledger 1 ";

enum {
    HEAD = 40,           /* bytes of a table before its entries */
    DIGEST = 32,         /* bytes of the digest at its end */
    QUANTILE_ROWS = 1009,
    BATCH = 64,          /* candidate seeds whose words are made at once (base.py) */
    ROOM_CLIP = 38,      /* -log2 of LOOK_ROOM and ROTATION_ROOM (norm.py) */
    ROOM_ROTATION = 16,
    OTHER_STREAMS = 2,   /* streams of a release: primary words, ties, then a mechanism's own (rng.py) */
    NONCE_STREAM = 2     /* of the vector mechanism's own (vector.py) */
};

_Static_assert(sizeof(qb_entry) == 432, "entries are read as they were written");

/* ---- SHA-256 (FIPS 180-4) and CRC-32 (ISO 3309) ------------------------------------------------------------------- */

static const u32 SHA_CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static u32 rotate_right(u32 word, int by) { return word >> by | word << (32 - by); }

static void sha256_block(u32 state[8], const u8 *block) {
    u32 w[64], s[8];
    for (int i = 0; i < 16; i++) {
        w[i] = (u32)block[4 * i] << 24 | (u32)block[4 * i + 1] << 16 | (u32)block[4 * i + 2] << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        u32 a = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ w[i - 15] >> 3;
        u32 b = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        u32 high = rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25);
        u32 first = s[7] + high + ((s[4] & s[5]) ^ (~s[4] & s[6])) + SHA_CONSTANTS[i] + w[i];
        u32 low = rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22);
        u32 second = low + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        for (int k = 7; k > 0; k--) s[k] = s[k - 1];
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

void qb_sha256(const void *data, size_t size, u8 digest[32]) {
    u32 state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const u8 *bytes = data;
    u8 tail[128] = {0};
    size_t whole = size / 64 * 64, rest = size - whole, end = rest < 56 ? 64 : 128;
    for (size_t at = 0; at < whole; at += 64) sha256_block(state, bytes + at);
    if (rest > 0) memcpy(tail, bytes + whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++) tail[end - 1 - (size_t)i] = (u8)((u64)size * 8 >> 8 * i);
    for (size_t at = 0; at < end; at += 64) sha256_block(state, tail + at);
    for (int i = 0; i < 32; i++) digest[i] = (u8)(state[i / 4] >> (24 - 8 * (i % 4)));
}

static u32 crc32(const u8 *data, size_t size) {
    u32 table[256], crc = 0xFFFFFFFFu;
    for (u32 i = 0; i < 256; i++) {
        u32 value = i;
        for (int k = 0; k < 8; k++) value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
        table[i] = value;
    }
    for (size_t i = 0; i < size; i++) crc = crc >> 8 ^ table[(crc ^ data[i]) & 255];
    return ~crc;
}

/* ---- the owner's table ---------------------------------------------------------------------------------------------- */

static int is_power_of_two(u64 value) { return value > 0 && (value & (value - 1)) == 0; }

static int is_between(double value, double low, double high) { return value >= low && value <= high; } /* NaN is not */

static u64 padded_size(u64 dimension) {
    u64 size = 1;
    while (size < dimension) size *= 2;
    return size;
}

/* The array at a place of the table, or null if it does not lie inside, at a multiple of eight. */
static const void *array_at(const qb_table *table, u64 place, u64 count, u64 size) {
    if (place % 8 != 0 || place > table->size || count > (table->size - place) / size) return 0;
    return table->bytes + place;
}

static int doubles_fit(const qb_table *table, u64 place, u64 count, double largest) {
    const double *values = array_at(table, place, count, 8);
    if (!values) return 0;
    for (u64 i = 0; i < count; i++) {
        if (!is_between(values[i], -largest, largest)) return 0;
    }
    return 1;
}

static int codes_fit(const qb_table *table, const qb_entry *entry) {
    if (entry->bits < 1 || entry->bits > QB_MAX_BITS || entry->levels < 2 || entry->levels > 1 << 15) return 0;
    u64 symbols = 1ull << entry->bits, cells = entry->cells;
    if (!is_between(entry->scale, 0x1p-500, 0x1p500) || !is_between(entry->clamp[0], -0x1p17, 0x1p17)) return 0;
    if (!is_between(entry->clamp[1], entry->clamp[0], 0x1p17)) return 0;
    for (int i = 0; i < 6; i++) {
        u64 count = i < 2 ? entry->levels : (entry->levels - 1) * symbols;
        if (!doubles_fit(table, entry->law[i], count, 0x1p20)) return 0;
    }
    if (entry->block > 0) {
        if (!is_power_of_two(entry->block) || entry->block > entry->dimension || entry->order != 2) return 0;
        if (!is_between(entry->radius, 0x1p-90, 0x1p90)) return 0;
    }
    if (entry->coefficient_count > 0) {
        if (entry->bits != 1 || entry->coefficient_count > QB_MAX_COEFFICIENTS || entry->width > 1000) return 0;
        float reach = 0.0f; /* a polynomial on [-1, 1] stays where its floors are numbers of 32 bits */
        for (u32 i = 0; i < entry->coefficient_count; i++) {
            float value = entry->coefficient[i];
            if (!is_between(value, -0x1p24, 0x1p24)) return 0;
            reach += value < 0.0f ? -value : value;
        }
        if (!(reach < 0x1p30f)) return 0;
        return is_between(entry->plan_rate, 0x1p-40, 0x1p60) && is_between(entry->plan_offset, -0x1p60, 0x1p60);
    }
    if (cells < 1 || cells > 1u << 20 || !is_between(entry->inverse, 0.0, 0x1p40)) return 0;
    if (!is_between(entry->cell_offset, -0x1p60, 0x1p60) || !is_between(entry->half, 0.5, 0x1p30)) return 0;
    const u8 *lowest = array_at(table, entry->table[2], 256 * cells, 1);
    const u8 *highest = array_at(table, entry->table[3], 256 * cells, 1);
    const u8 *code = array_at(table, entry->table[4], 256 * cells, 1);
    if (!array_at(table, entry->table[0], (symbols - 1) * cells, 4)) return 0;
    if (!array_at(table, entry->table[1], (symbols - 1) * cells, 4)) return 0;
    if (!lowest || !highest || !code) return 0;
    for (u64 i = 0; i < 256 * cells; i++) {
        if (lowest[i] > symbols - 1 || highest[i] > symbols - 1) return 0;
        if (code[i] > symbols - 1 && code[i] != 255) return 0;
    }
    return 1;
}

static int seed_fits(const qb_table *table, const qb_entry *entry) {
    u64 padded = padded_size(entry->dimension);
    if (entry->order != 2 || entry->block != 0 || !is_between(entry->radius, 0x1p-90, 0x1p90)) return 0;
    if (!is_power_of_two(entry->keep) || entry->keep > padded || entry->keep > 65536) return 0;
    if (padded / entry->keep > 1u << 24 || entry->tries < 1 || entry->tries > 1ull << 40) return 0;
    if (entry->edge_count < 1 || entry->edge_count > 1u << 16 || !is_between(entry->largest, 0x1p-40, 1e60)) return 0;
    const double *edges = array_at(table, entry->edges, entry->edge_count, 8);
    if (!edges || !doubles_fit(table, entry->profile_levels, entry->edge_count + 1, 1e60)) return 0;
    for (u64 i = 1; i < entry->edge_count; i++) {
        if (!(edges[i - 1] < edges[i])) return 0;
    }
    return doubles_fit(table, entry->quantiles, 8 * QUANTILE_ROWS, 0x1p10);
}

/* Parts of the workspace, one after the other; each begins at a multiple of eight. */
typedef struct {
    double *sums;      /* of a norm's blocks */
    float *values;     /* the update: copied, so that nobody changes it meanwhile, and rotated in place */
    u64 *signs;        /* words of Philox */
    u32 *first, *last; /* signs of whole blocks, and of a last one that overlaps */
    double *kept;      /* rows of the vector mechanism, whole tiles, and what is made of them */
    u64 *limits, *row_words;
    u64 size;
} parts;

static void *take(u8 *begin, u64 *used, u64 bytes) {
    u8 *place = begin ? begin + *used : 0;
    *used += (bytes + 7) / 8 * 8;
    return place;
}

/* Of a checked entry; sizes are below 2^40, whatever this machine can address. */
static parts divide(const qb_entry *entry, void *workspace) {
    parts p = {0};
    int seed = entry->kind == QB_SEED;
    u64 values = seed ? padded_size(entry->dimension) : entry->dimension;
    u64 signs = seed ? values : entry->block > 0 ? values + entry->block : 0;
    u64 tiles = seed ? (entry->keep + QB_TILE - 1) / QB_TILE : 0;
    p.sums = take(workspace, &p.size, 8 * ((entry->dimension + QB_NORM_BLOCK - 1) / QB_NORM_BLOCK));
    p.values = take(workspace, &p.size, 4 * values);
    p.signs = take(workspace, &p.size, (signs + 63) / 64 * 8);
    p.first = take(workspace, &p.size, signs > 0 ? (values + 31) / 32 * 4 : 0);
    p.last = take(workspace, &p.size, (entry->block + 31) / 32 * 4);
    p.kept = take(workspace, &p.size, 8 * QB_TILE * tiles);
    p.row_words = take(workspace, &p.size, 8 * QB_TILE * tiles);
    p.limits = take(workspace, &p.size, seed ? 8 * (entry->edge_count + 1) : 0);
    return p;
}

static u64 body_size(const qb_entry *entry) {
    if (entry->kind == QB_SEED) return entry->has_rows ? 16 : 24;
    return (entry->dimension * entry->bits + 7) / 8;
}

static size_t head_size(const qb_entry *entry) { return entry->kind == QB_SEED ? 56 : 64; }

size_t qb_workspace_size(const qb_entry *entry) { return (size_t)divide(entry, 0).size; }

size_t qb_payload_size(const qb_entry *entry) { return head_size(entry) + (size_t)body_size(entry); }

/* Whether update, workspace and payload of a checked entry fit into memory side by side. */
static int is_addressable(const qb_entry *entry) {
    u64 update = 4 * entry->dimension, needed = update + divide(entry, 0).size + head_size(entry) + body_size(entry);
    return needed <= SIZE_MAX / 2;
}

qb_status qb_table_open(const void *bytes, size_t size, qb_table *table) {
    const u8 *begin = bytes;
    u64 stated_size;
    if ((uintptr_t)bytes % 8 != 0 || size < HEAD + DIGEST || memcmp(begin, MAGIC, 8) != 0) return QB_TABLE_DAMAGED;
    memcpy(&stated_size, begin + 8, 8);
    memcpy(&table->budget, begin + 16, 8);
    memcpy(&table->count, begin + 24, 4);
    table->bytes = begin;
    table->size = size - DIGEST;
    table->entries = (const qb_entry *)(const void *)(begin + HEAD);
    qb_sha256(begin, table->size, table->digest);
    if (stated_size != size || memcmp(table->digest, begin + table->size, DIGEST) != 0) return QB_TABLE_DAMAGED;
    if (table->count > (table->size - HEAD) / sizeof(qb_entry) || table->budget > 1ull << 62) return QB_TABLE_DAMAGED;
    qb_status status = QB_OK;
    for (u32 i = 0; i < table->count; i++) {
        const qb_entry *entry = table->entries + i;
        int fine = entry->dimension >= 1 && entry->dimension <= 1ull << 32 && entry->cost >= 1;
        fine = fine && entry->cost <= 1ull << 62 && (entry->order == 1 || entry->order == 2);
        fine = fine && is_between(entry->radius, 0x1p-200, 0x1p200);
        if (fine && entry->kind == QB_CODES) fine = codes_fit(table, entry);
        else if (fine && entry->kind == QB_SEED) fine = seed_fits(table, entry);
        else fine = 0;
        if (!fine) return QB_TABLE_DAMAGED;
        if (!is_addressable(entry)) status = QB_TOO_LARGE;
    }
    return status;
}

const qb_entry *qb_find(const qb_table *table, const char *text, size_t length) {
    u8 digest[32];
    qb_sha256(text, length, digest);
    for (u32 i = 0; i < table->count; i++) {
        const qb_entry *entry = table->entries + i;
        if (memcmp(digest, entry->identity, 32) == 0 || memcmp(digest, entry->description, 32) == 0) return entry;
    }
    return 0;
}

/* ---- the ledger: one line for the table, then one per release ----------------------------------------------------------
 *
 *     quietbit-ledger 1 SHA-256 of the table
 *     IDENTITY COST SPENT          hexadecimal, and two decimal numbers: of this release, and of all up to it
 */

static size_t write_hex(const u8 *bytes, char *out) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    return 64;
}

static size_t write_decimal(u64 value, char *out) {
    char reversed[20];
    size_t length = 0;
    do {
        reversed[length++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    for (size_t i = 0; i < length; i++) out[i] = reversed[length - 1 - i];
    return length;
}

size_t qb_ledger_begin(const qb_table *table, char line[QB_LINE_BYTES]) {
    size_t length = sizeof LEDGER - 1;
    memcpy(line, LEDGER, length);
    length += write_hex(table->digest, line + length);
    line[length++] = '\n';
    return length;
}

static size_t release_line(const qb_entry *entry, u64 spent, char line[QB_LINE_BYTES]) {
    size_t length = write_hex(entry->identity, line);
    line[length++] = ' ';
    length += write_decimal(entry->cost, line + length);
    line[length++] = ' ';
    length += write_decimal(spent + entry->cost, line + length);
    line[length++] = '\n';
    return length;
}

/* Every line must be the one that this library would write there: nothing is parsed, so nothing can be misread. */
qb_status qb_ledger_spent(const qb_table *table, const char *text, size_t length, u64 *spent) {
    char line[QB_LINE_BYTES];
    size_t at = qb_ledger_begin(table, line);
    *spent = 0;
    if (length < at || memcmp(text, line, at) != 0) return QB_LEDGER_DAMAGED;
    while (at < length) {
        const qb_entry *released = 0;
        for (u32 i = 0; i < table->count && !released; i++) {
            size_t size = release_line(table->entries + i, *spent, line);
            if (size <= length - at && memcmp(text + at, line, size) == 0) {
                released = table->entries + i;
                at += size;
            }
        }
        if (!released || released->cost > (1ull << 63) - *spent) return QB_LEDGER_DAMAGED;
        *spent += released->cost;
    }
    return QB_OK;
}

qb_status qb_ledger_line(const qb_table *table, const qb_entry *entry, u64 spent, char line[QB_LINE_BYTES],
                         size_t *length) {
    if (spent > table->budget || entry->cost > table->budget - spent) return QB_OVER_BUDGET;
    *length = release_line(entry, spent, line);
    return QB_OK;
}

/* ---- one release ------------------------------------------------------------------------------------------------------------ */

/* Write the header before a body (docs/reference/wire_format.md). */
static void write_header(const qb_entry *entry, u8 *payload) {
    size_t end = head_size(entry) - 8;
    u16 version = entry->kind == QB_SEED ? 2 : 1, bits = entry->kind == QB_SEED ? 0 : (u16)entry->bits;
    u64 length = body_size(entry);
    memcpy(payload, "QBIT", 4);
    memcpy(payload + 4, &version, 2);
    memcpy(payload + 6, &bits, 2);
    memcpy(payload + 8, &entry->dimension, 8);
    memcpy(payload + 16, &length, 8);
    memcpy(payload + 24, entry->identity, end - 24);
    u32 body = crc32(payload + end + 8, (size_t)length);
    memcpy(payload + end, &body, 4);
    u32 head = crc32(payload, end + 4);
    memcpy(payload + end + 4, &head, 4);
}

/* Whether every number is finite, by its bits: no flag of a compiler lets a NaN pass for one. */
static int are_finite(const float *values, size_t count) {
    u32 largest = 0;
    for (size_t i = 0; i < count; i++) {
        u32 bits;
        memcpy(&bits, values + i, 4);
        bits &= 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    return largest < 0x7F800000u;
}

static qb_part part_of(const float *values, u64 count) { return (qb_part){values, 0, (i64)count, 0, QB_FLOAT}; }

/* factor * values with signs, in place. */
static void flip(float *values, u64 count, double factor, const u32 *signs) {
    const qb_part part = part_of(values, count);
    const qb_update update = {&part, 1, part.size};
    qb_flip(&update, factor, signs, values, 0, 0, part.size);
}

/* The norm of an update. Of float values neither sums of squares nor their roots leave the range of doubles. */
static double norm_of(const qb_entry *entry, const parts *p) {
    i64 blocks = (i64)((entry->dimension + QB_NORM_BLOCK - 1) / QB_NORM_BLOCK);
    const qb_part part = part_of(p->values, entry->dimension);
    const qb_update update = {&part, 1, part.size};
    qb_block_sums(&update, 1.0, (int)entry->order, p->sums, 0, blocks);
    double total = qb_exact_sum(p->sums, (size_t)blocks);
    return entry->order == 2 ? __builtin_sqrt(total) : total; /* correctly rounded, as IEEE 754 asks for */
}

/* The signs of a rotation: Philox, keyed by SeedSequence(seed, spawn_key=(count,)). */
static void make_signs(u64 seed, u64 count, u64 *signs) {
    u32 entropy[6] = {(u32)seed, (u32)(seed >> 32), 0, 0, (u32)count, (u32)(count >> 32)};
    u64 key[2];
    qb_seed_key(entropy, count >> 32 ? 6 : 5, key);
    qb_philox(key, 0, (size_t)((count + 63) / 64), signs);
}

/* Transform every block of a power of two entries; `count` is a multiple of the block. */
static void transform(float *x, u64 count, u64 block) {
    size_t parts;
    for (int step = 0; (parts = qb_transform_parts((size_t)count, (size_t)block, step)) > 0; step++) {
        qb_transform(x, 0, (size_t)count, (size_t)block, step, 0, 0, 0, parts);
    }
}

/* factor * values, rotated in blocks (transform.py, Blocks): where blocks do not divide the dimension, the last one
 * overlaps and has signs of its own. */
static void rotate_in_blocks(const qb_entry *entry, double factor, const parts *p) {
    u64 size = entry->dimension, block = entry->block, whole = size / block * block;
    make_signs(entry->seed, size + block, p->signs);
    for (u64 i = 0; i < (size + 31) / 32; i++) {
        u32 word = (u32)(p->signs[i / 2] >> 32 * (i % 2));
        if (32 * i >= whole) word = 0;
        else if (32 * i + 32 > whole) word &= (1u << whole % 32) - 1;
        p->first[i] = whole == size ? (u32)(p->signs[i / 2] >> 32 * (i % 2)) : word;
    }
    flip(p->values, size, factor, p->first);
    transform(p->values, whole, block);
    if (whole == size) return;
    memset(p->last, 0, (size_t)((block + 31) / 32 * 4));
    for (u64 i = 0; i < block; i++) {
        u64 bit = size + i;
        p->last[i / 32] |= (u32)(p->signs[bit / 64] >> bit % 64 & 1) << i % 32;
    }
    float *end = p->values + (size - block);
    flip(end, block, 1.0, p->last);
    transform(end, block, block);
}

/* Return whether what was sampled lies in the ball; of values that do not, nothing may leave. */
static int release_codes(const qb_table *table, const qb_entry *entry, const u32 *key, const parts *p, u8 *body) {
    double gain[4], norm = norm_of(entry, p);
    if (entry->block > 0) {
        rotate_in_blocks(entry, qb_clip_factor(norm, entry->radius, ROOM_ROTATION), p);
        qb_gain(1.0, entry->scale, gain);
    } else {
        qb_gain(qb_clip_factor(norm, entry->radius, ROOM_CLIP), entry->scale, gain);
    }
    double rate = gain[2] * gain[0] * gain[1];
    qb_law law = {{gain[0], gain[1], gain[2], gain[3]}, {entry->clamp[0], entry->clamp[1]}, 0, 0, 0, 0, 0, 0,
                  (int32_t)entry->levels, (int32_t)entry->bits};
    const double **arrays[6] = {&law.knots, &law.knots_tail, &law.base, &law.base_tail, &law.slope, &law.slope_tail};
    for (int i = 0; i < 6; i++) *arrays[i] = (const void *)(table->bytes + entry->law[i]);
    qb_polynomial polynomial = {0};
    qb_cells cells = {0};
    qb_random random = {0};
    memcpy(random.key, key, sizeof random.key);
    qb_sampling how = {0, 0, &law, 0, &random, (int32_t)entry->bits, 2};
    if (entry->coefficient_count > 0) {
        double slope = rate * entry->plan_rate;
        polynomial.gain = entry->centred ? 2.0 * slope : slope;
        polynomial.shift = entry->centred ? 2.0 * entry->plan_offset - 1.0 : entry->plan_offset;
        polynomial.low = entry->centred ? -1.0f : 0.0f;
        memcpy(polynomial.coefficient, entry->coefficient, sizeof polynomial.coefficient);
        polynomial.count = (int32_t)entry->coefficient_count;
        polynomial.width = (int32_t)entry->width;
        if (polynomial.gain > 0x1p-100 && polynomial.gain < 0x1p100) how.polynomial = &polynomial;
    } else {
        cells = (qb_cells){rate, entry->clamp[0], entry->clamp[1], entry->inverse, entry->cell_offset,
                           (const void *)(table->bytes + entry->table[0]), (const void *)(table->bytes + entry->table[1]),
                           table->bytes + entry->table[2], table->bytes + entry->table[3],
                           table->bytes + entry->table[4], entry->half, (int32_t)entry->cells, (int32_t)entry->bits};
        how.cells = &cells;
    }
    const qb_part part = part_of(p->values, entry->dimension);
    const qb_update update = {&part, 1, part.size};
    double squares = qb_sample(&how, &update, body, 0, part.size);
    return entry->block == 0 || squares <= entry->square_limit;
}

/* An inner product in the order of normals.py: 64 partial sums, then a tree. */
static double inner(const double *left, const double *right, u64 count) {
    double sums[64] = {0.0};
    for (u64 i = 0; i < count; i++) {
        double product = left[i] * right[i];
        sums[i % 64] += product;
    }
    for (int half = 32; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    }
    return sums[0];
}

/* 2^exponent as a factor, for exponents that a float's rows can have. */
static double two_to(int exponent) {
    double power = 1.0, step = exponent < 0 ? 0.5 : 2.0;
    for (int i = exponent < 0 ? -exponent : exponent; i > 0; i--) power *= step;
    return power;
}

/* Divide kept rows by their length, in place, and return it; zero has the direction of the first axis. */
static double make_unit(double *kept, u64 count) {
    double largest = 0.0;
    int exponent = 0;
    for (u64 i = 0; i < count; i++) {
        double size = kept[i] < 0.0 ? -kept[i] : kept[i];
        largest = size > largest ? size : largest;
    }
    if (largest == 0.0) {
        kept[0] = 1.0;
        for (u64 i = 1; i < count; i++) kept[i] = 0.0;
        return 0.0;
    }
    while (largest >= 1.0) { /* largest = fraction * 2^exponent with 1/2 <= fraction < 1 */
        largest *= 0.5;
        exponent++;
    }
    while (largest < 0.5) {
        largest *= 2.0;
        exponent--;
    }
    double down = two_to(-exponent), up = two_to(exponent);
    for (u64 i = 0; i < count; i++) kept[i] *= down;
    double length = __builtin_sqrt(inner(kept, kept, count));
    for (u64 i = 0; i < count; i++) kept[i] /= length;
    return length * up;
}

static void release_seed(const qb_table *table, const qb_entry *entry, const u32 *key, const parts *p, u8 *body) {
    u64 padded = padded_size(entry->dimension), keep = entry->keep, tiles = (keep + QB_TILE - 1) / QB_TILE;
    u64 nonce = entry->rows, seeds[2 * BATCH], accept[BATCH];
    const double *quantiles = (const void *)(table->bytes + entry->quantiles);
    const double *edges = (const void *)(table->bytes + entry->edges);
    const double *levels = (const void *)(table->bytes + entry->profile_levels);
    u32 state[16] = {0x61707865, 0x3120646e, 0x79622d36, 0x6b206574}; /* "expand 16-byte k" */
    if (!entry->has_rows) qb_stream_words(key, OTHER_STREAMS + NONCE_STREAM, 0, 1, &nonce);
    make_signs(entry->seed, padded, p->signs);
    for (u64 i = 0; i < (padded + 31) / 32; i++) p->first[i] = (u32)(p->signs[i / 2] >> 32 * (i % 2));
    double factor = qb_clip_factor(norm_of(entry, p), entry->radius, 0);
    memset(p->values + entry->dimension, 0, (size_t)(4 * (padded - entry->dimension)));
    flip(p->values, entry->dimension, factor, p->first);
    transform(p->values, padded, padded);
    memcpy(state + 4, "quietbit rows v1", 16);
    memcpy(state + 8, "quietbit rows v1", 16);
    memcpy(state + 14, &nonce, 8);
    qb_expand_words(state, (size_t)tiles, p->row_words);
    u64 width = padded / keep;
    double spread = __builtin_sqrt((double)width);
    memset(p->kept, 0, (size_t)(8 * QB_TILE * tiles));
    for (u64 j = 0; j < keep; j++) { /* row j w + floor(word w / 2^64) of stratum j */
        u64 carried = (p->row_words[j] & 0xFFFFFFFFu) * width >> 32;
        u64 row = j * width + (((p->row_words[j] >> 32) * width + carried) >> 32);
        p->kept[j] = (double)p->values[row] * spread / entry->radius;
    }
    double length = make_unit(p->kept, keep), share = length < 1.0 ? length : 1.0;
    for (u64 i = 0; i <= entry->edge_count; i++) {
        double part = share * levels[i];
        double chance = ((1.0 - share) + part) / entry->largest;
        p->limits[i] = chance < 1.0 ? (u64)(chance * 0x1p64) : UINT64_MAX;
    }
    i64 accepted = -1;
    u64 begin = 0;
    for (; begin < entry->tries && accepted < 0; begin += BATCH) {
        size_t some = entry->tries - begin < BATCH ? (size_t)(entry->tries - begin) : BATCH;
        qb_stream_words(key, OTHER_STREAMS, 2 * begin, 2 * some, seeds);
        qb_stream_words(key, OTHER_STREAMS + 1, begin, some, accept);
        accepted = qb_first_accepted((const u32 *)(const void *)seeds, accept, some, p->kept, (size_t)tiles, edges,
                                     (size_t)entry->edge_count, p->limits, quantiles);
    }
    if (accepted < 0) { /* with probability 2^-60: the next candidate, unseen (base.py, search) */
        qb_stream_words(key, OTHER_STREAMS, 2 * entry->tries, 2, seeds);
        accepted = 0;
    }
    if (!entry->has_rows) memcpy(body, &nonce, 8);
    memcpy(body + (entry->has_rows ? 0 : 8), seeds + 2 * accepted, 16);
}

qb_status qb_release(const qb_table *table, const qb_entry *entry, const float *update, size_t count,
                     const u8 key[QB_KEY_BYTES], void *workspace, u8 *payload) {
    u32 words[8];
    u8 *body = payload + head_size(entry);
    if (count != entry->dimension) return QB_WRONG_DIMENSION;
    parts p = divide(entry, workspace);
    memcpy(p.values, update, 4 * count);
    if (!are_finite(p.values, count)) memset(p.values, 0, 4 * count);
    memcpy(words, key, sizeof words);
    memset(body, 0, (size_t)body_size(entry));
    if (entry->kind == QB_SEED) {
        release_seed(table, entry, words, &p, body);
    } else if (!release_codes(table, entry, words, &p, body)) {
        memset(p.values, 0, 4 * count);
        memset(body, 0, (size_t)body_size(entry));
        release_codes(table, entry, words, &p, body);
    }
    write_header(entry, payload);
    return QB_OK;
}
