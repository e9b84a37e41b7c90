/* Run the C library on random input in buffers of exactly the size that it may touch, under sanitizers.
 *
 *     fuzz SEED ITERATIONS TABLE...
 *
 * Tables are changed at random, with a digest that fits: what still opens is released from, with random updates.
 */
#include "quietbit_client.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t word(void) { /* SplitMix64 */
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static size_t below(size_t limit) { return (size_t)(word() % limit); }

/* Memory of exactly this size, filled at random. */
static void *random_bytes(size_t size) {
    uint8_t *memory = malloc(size > 0 ? size : 1);
    if (!memory) abort();
    for (size_t i = 0; i < size; i++) memory[i] = (uint8_t)word();
    return memory;
}

static float *random_update(size_t count) {
    static const float special[] = {0.0f, -0.0f, 1e-45f, 3.4e38f, -3.4e38f, INFINITY, NAN};
    float *update = random_bytes(4 * count);
    int mode = (int)below(4);
    for (size_t i = 0; mode > 0 && i < count; i++) {
        update[i] = (float)((double)(int64_t)word() * 0x1p-63);
        if (mode == 1 && below(50) == 0) update[i] = special[below(7)];
    }
    return update; /* mode 0: any bits */
}

static void release_all(const qb_table *table) {
    for (uint32_t i = 0; i < table->count; i++) {
        const qb_entry *entry = table->entries + i;
        if (entry->dimension > 100000 || entry->tries > 1000000 || qb_workspace_size(entry) > 1u << 26) continue;
        size_t count = (size_t)entry->dimension;
        float *update = random_update(count);
        void *workspace = random_bytes(qb_workspace_size(entry));
        uint8_t *payload = random_bytes(qb_payload_size(entry)), key[QB_KEY_BYTES];
        for (int k = 0; k < QB_KEY_BYTES; k++) key[k] = (uint8_t)word();
        qb_release(table, entry, update, count, key, workspace, payload);
        free(update);
        free(workspace);
        free(payload);
    }
}

static void change_table(const uint8_t *original, size_t size) {
    uint8_t *bytes = malloc(size);
    if (!bytes) abort();
    memcpy(bytes, original, size);
    uint32_t entries;
    memcpy(&entries, bytes + 24, 4);
    size_t end = 40 + entries * sizeof(qb_entry);
    for (size_t changes = below(3); changes > 0; changes--) {
        size_t reach = below(4) == 0 ? size - 32 : end, place = below(reach / 4) * 4;
        uint64_t value = below(3) == 0 ? word() : below(3) == 0 ? UINT64_MAX >> below(64) : below(100);
        memcpy(bytes + place, &value, place + 8 <= size - 32 ? 1 + below(8) : 4);
    }
    qb_sha256(bytes, size - 32, bytes + size - 32);
    qb_table table;
    if (qb_table_open(bytes, size, &table) == QB_OK) {
        char *ledger = random_bytes(200), line[QB_LINE_BYTES];
        uint64_t spent;
        size_t begin = qb_ledger_begin(&table, line);
        memcpy(ledger, line, begin < 200 ? begin : 200);
        qb_ledger_spent(&table, ledger, below(201), &spent);
        qb_find(&table, ledger, below(201));
        free(ledger);
        release_all(&table);
    }
    free(bytes);
}

static void run_kernel(void) {
    size_t count = below(5000), groups = (count + 7) / 8;
    int bits = 1 + (int)below(8), wide = (int)below(2);
    uint8_t *codes = random_bytes(8 * groups), *packed = random_bytes(groups * (size_t)bits), *again = malloc(8 * groups + 1);
    for (size_t i = 0; i < 8 * groups; i++) codes[i] &= (uint8_t)((1 << bits) - 1);
    qb_pack(codes, count, bits, packed);
    qb_unpack(packed, count, bits, again);
    if (count > 0 && memcmp(codes, again, count) != 0) abort();
    const uint8_t *rows[QB_GROUP];
    int payloads = 1 + (int)below(QB_GROUP);
    size_t code_bits = 1 + below(16);
    int64_t *table = calloc((size_t)1 << code_bits, 8);
    for (int p = 0; p < payloads; p++) rows[p] = random_bytes((count * code_bits + 7) / 8);
    void *total = calloc(count + 1, wide ? 8 : 4);
    qb_accumulate(rows, payloads, (int)code_bits, table, total, wide, 8 * below(count / 8 + 1), count);
    for (int p = 0; p < payloads; p++) free((void *)rows[p]);
    free(codes);
    free(packed);
    free(again);
    free(table);
    free(total);
    size_t block = (size_t)1 << below(13), blocks = 1 + below(3);
    float *rotated = random_update(block * blocks);
    qb_transform(rotated, 0, block * blocks, block, 0, 0, (int)below(2), 0, 1);
    free(rotated);
}

/* One send: an update of parts of all kinds, words of every source, rotated or not, in one call or two. */
static void send_parts(void) {
    static const size_t bytes[] = {4, 8, 2, 2};
    const double knots[2] = {-0.5, 0.5}, zeros[2] = {0.0, 0.0}, base[2] = {0.0, 0.1}, slope[2] = {0.0, 0.7};
    const qb_law law = {{1.0, 1.0, 1.3, 0.0}, {-0.5, 0.5}, knots, zeros, base, zeros, slope, zeros, 2, 1};
    qb_polynomial plan = {0.25, 0.5, 0.0f, {100.0f, -200.0f, 3000.0f, 30000.0f}, 4, 18};
    qb_part parts[5];
    qb_update update = {parts, 1 + (int64_t)below(5), 0};
    int64_t norm_blocks = 0;
    for (int64_t i = 0; i < update.count; i++) {
        int64_t size = below(3) ? (int64_t)below(6000) : 0;
        int kind = (int)below(4);
        parts[i] = (qb_part){random_bytes((size_t)size * bytes[kind]), update.size, size, norm_blocks, kind};
        update.size += size;
        norm_blocks += (size + QB_NORM_BLOCK - 1) / QB_NORM_BLOCK;
    }
    size_t count = (size_t)update.size, block = 1;
    double *sums = random_bytes(8 * (size_t)norm_blocks), *turned = random_bytes(8 * count);
    uint32_t *signs = random_bytes((count + 31) / 32 * 4), last_signs[QB_NORM_BLOCK / 32];
    qb_block_sums(&update, 1.0, 1 + (int)below(2), sums, 0, norm_blocks);
    qb_exact_sum(sums, (size_t)norm_blocks);
    qb_flip(&update, 0.5, signs, turned, 1, 0, update.size);
    while (block < QB_NORM_BLOCK && 2 * block <= count && below(12)) block *= 2;
    for (size_t i = 0; i < QB_NORM_BLOCK / 32; i++) last_signs[i] = (uint32_t)word();
    const qb_rotation rotation = {0.5, signs, count % block ? last_signs : 0, update.size, (int64_t)block};
    qb_random random = {0};
    uint16_t *given = random_bytes(2 * count);
    uint64_t *ties = random_bytes(8 * count);
    int source = (int)below(3);
    random.key[0] = (uint32_t)word();
    random.is_seeded = source == 1;
    if (source == 2) {
        random.given = given;
        random.given_ties = ties;
    }
    uint8_t *coded = random_bytes((count + 7) / 8);
    const qb_sampling how = {below(4) ? &plan : 0, 0, &law, below(2) ? &rotation : 0, &random, 1, (int32_t)below(3)};
    int64_t first = count > 3 * QB_PRIMARY_TILE ? QB_PRIMARY_TILE : 0;
    if (first) qb_sample(&how, &update, coded, 0, first);
    qb_sample(&how, &update, coded, first, update.size);
    for (int64_t i = 0; i < update.count; i++) free((void *)parts[i].values);
    void *all[] = {sums, turned, signs, given, ties, coded};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    state = strtoull(arguments[1], 0, 10);
    long iterations = strtol(arguments[2], 0, 10);
    if (qb_self_test() != 0) return 3;
    for (long i = 0; i < iterations; i++) {
        FILE *file = fopen(arguments[3 + below((size_t)count - 3)], "rb");
        if (!file) return 4;
        fseek(file, 0, SEEK_END);
        size_t size = (size_t)ftell(file);
        uint8_t *table = malloc(size);
        rewind(file);
        if (!table || fread(table, 1, size, file) != size) return 4;
        fclose(file);
        change_table(table, size);
        free(table);
        run_kernel();
        send_parts();
    }
    return 0;
}
