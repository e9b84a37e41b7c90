/* The loops of quietbit.c, compiled once per instruction set: SET(name) is the name with the set's ending.
 *
 * VECTOR_LANES is the number of 32-bit lanes of a register. Passes are plain loops over short contiguous arrays, which
 * compilers turn into vector instructions; ChaCha uses vectors of the language extension that gcc and clang share, and
 * masks of comparisons the few intrinsics that turn them into bits.
 */

/* Fused where the instruction exists: only decisions in float32 and sums for a second look use it. */
#undef MULTIPLY_ADD_F32
#undef MULTIPLY_ADD_F64
#if defined(HAS_FMA)
#define MULTIPLY_ADD_F32(a, b, c) __builtin_fmaf(a, b, c)
#define MULTIPLY_ADD_F64(a, b, c) __builtin_fma(a, b, c)
#else
#define MULTIPLY_ADD_F32(a, b, c) ((a) * (b) + (c))
#define MULTIPLY_ADD_F64(a, b, c) ((a) * (b) + (c))
#endif

/* ---- ChaCha, VECTOR_LANES blocks side by side ------------------------------------------------------------------- */

typedef u32 SET(vector) __attribute__((vector_size(4 * VECTOR_LANES)));
#undef ROTATE_VECTOR
#define ROTATE_VECTOR(v, by) ((v) << (by) | (v) >> (32 - (by)))

INLINE void SET(chacha)(const u32 *state, u64 first, int rounds, SET(vector) out[16]) {
    SET(vector) start[16], x[16];
    u64 begin = (state[12] | (u64)state[13] << 32) + first;
    u32 low[VECTOR_LANES], high[VECTOR_LANES];
    for (int lane = 0; lane < VECTOR_LANES; lane++) {
        low[lane] = (u32)(begin + (u64)lane);
        high[lane] = (u32)((begin + (u64)lane) >> 32);
    }
    for (int i = 0; i < 16; i++) start[i] = (SET(vector)){0} + state[i];
    memcpy(&start[12], low, sizeof low);
    memcpy(&start[13], high, sizeof high);
    for (int i = 0; i < 16; i++) x[i] = start[i];
    for (int round = 0; round < rounds; round += 2) {
        DOUBLE_ROUND(x, ROTATE_VECTOR)
    }
    for (int i = 0; i < 16; i++) out[i] = x[i] + start[i];
}

/* Primary words of a tile: a tile is 128 blocks, and words 4 r .. 4 r + 3 of a block are neighbours in row r. */
INLINE void SET(primary_tile)(const u32 *key, u64 tile, u16 *out) {
    u32 state[16];
    stream_state(key, 0, state);
    for (int block = 0; block < 128; block += VECTOR_LANES) {
        SET(vector) x[16];
        SET(chacha)(state, 128 * tile + (u64)block, RELEASE_ROUNDS, x);
        for (int row = 0; row < 4; row++) { /* transposed within every four lanes */
            const SET(vector) *w = x + 4 * row;
            SET(vector) low = JOIN(LOW_, VECTOR_LANES)(w[0], w[1], SET(vector));
            SET(vector) high = JOIN(HIGH_, VECTOR_LANES)(w[0], w[1], SET(vector));
            SET(vector) low_rest = JOIN(LOW_, VECTOR_LANES)(w[2], w[3], SET(vector));
            SET(vector) high_rest = JOIN(HIGH_, VECTOR_LANES)(w[2], w[3], SET(vector));
            SET(vector) four[4] = {
                JOIN(LOW_PAIRS_, VECTOR_LANES)(low, low_rest, SET(vector)),
                JOIN(HIGH_PAIRS_, VECTOR_LANES)(low, low_rest, SET(vector)),
                JOIN(LOW_PAIRS_, VECTOR_LANES)(high, high_rest, SET(vector)),
                JOIN(HIGH_PAIRS_, VECTOR_LANES)(high, high_rest, SET(vector)),
            };
            u16 *to = out + 1024 * row + 8 * block;
            for (int lane = 0; lane < VECTOR_LANES; lane++) {
                memcpy(to + 8 * lane, (const u8 *)&four[lane % 4] + 16 * (lane / 4), 16);
            }
        }
    }
}

/* The primary words of at most QB_PRIMARY_TILE coordinates, of which the first is a multiple of that. */
static void SET(primary_words)(const qb_random *random, i64 start, size_t count, u16 *out) {
    u64 words[QB_PRIMARY_TILE / 4];
    if (FULL(random->given != 0)) {
        memcpy(out, random->given + start, 2 * count);
    } else if (FULL(random->is_seeded)) {
        qb_philox(random->seeded, (u64)start / 4, (count + 3) / 4, words);
        memcpy(out, words, 2 * count);
    } else {
        SET(primary_tile)(random->key, (u64)start / QB_PRIMARY_TILE, out);
    }
}

/* 64-bit words of a stream, eight to a block. */
static void SET(stream_words)(const u32 *key, u64 stream, u64 start, size_t count, u64 *out) {
    u32 state[16];
    u64 words[8 * VECTOR_LANES];
    stream_state(key, stream, state);
    for (size_t done = 0; done < count;) {
        u64 block = (start + done) / 8, skipped = (start + done) % 8;
        size_t some = 8 * VECTOR_LANES - skipped < count - done ? 8 * VECTOR_LANES - (size_t)skipped : count - done;
        SET(vector) x[16];
        SET(chacha)(state, block, RELEASE_ROUNDS, x);
        for (int lane = 0; lane < VECTOR_LANES; lane++) {
            for (int j = 0; j < 8; j++) words[8 * lane + j] = x[2 * j][lane] | (u64)x[2 * j + 1][lane] << 32;
        }
        memcpy(out + done, words + skipped, 8 * some);
        done += some;
    }
}

/* The 128 words of a tile of the expansion: sixteen blocks, word j of every block before word j + 1. */
INLINE void SET(tile_words)(const u32 *state, u64 tile, u64 *out) {
    for (int block = 0; block < 16; block += VECTOR_LANES) {
        SET(vector) x[16];
        u32 raw[16][VECTOR_LANES];
        SET(chacha)(state, 16 * tile + (u64)block, EXPANSION_ROUNDS, x);
        memcpy(raw, x, sizeof raw);
        for (int j = 0; j < 8; j++) {
            for (int lane = 0; lane < VECTOR_LANES; lane++) {
                out[16 * j + block + lane] = raw[2 * j][lane] | (u64)raw[2 * j + 1][lane] << 32;
            }
        }
    }
}

/* ---- expansion (expand.py) ---------------------------------------------------------------------------------------- */

/* The normals of a tile's words: exponent and four bits of w choose a polynomial, the other 48 are its argument. */
INLINE void SET(tile_normals)(const u64 *restrict words, const double *restrict table, double *restrict out) {
    double odd[QB_TILE];
    i64 row[QB_TILE];
    for (int i = 0; i < QB_TILE; i++) odd[i] = (double)(i64)((words[i] & 0x7FFFFFFFFFFFFFFFu) | 1);
    for (int i = 0; i < QB_TILE; i++) {
        u64 bits = bits_of(odd[i]);
        row[i] = 8 * ((i64)(bits >> 48) - 1023 * 16);
        odd[i] = 2.0 * double_of((bits & 0xFFFFFFFFFFFFu) << 4 | 1023ull << 52) - 3.0;
    }
    for (int i = 0; i < QB_TILE; i++) {
        const double *c = table + row[i];
        double t = odd[i];
        double z = (((c[7] * t + c[6]) * t + c[5]) * t + c[4]) * t + c[3];
        z = ((z * t + c[2]) * t + c[1]) * t + c[0];
        out[i] = double_of(bits_of(z) ^ (words[i] & 1ull << 63));
    }
}

static void SET(expand_words)(const u32 *state, size_t tiles, u64 *out) {
    for (size_t tile = 0; tile < tiles; tile++) SET(tile_words)(state, tile, out + QB_TILE * tile);
}

static void SET(expand_normals)(const u32 *state, const double *table, size_t tiles, double *out) {
    u64 words[QB_TILE];
    for (size_t tile = 0; tile < tiles; tile++) {
        SET(tile_words)(state, tile, words);
        SET(tile_normals)(words, table, out + QB_TILE * tile);
    }
}

/* The number of edges that are at most a value. */
INLINE size_t SET(edges_passed)(const double *edges, size_t count, double value) {
    size_t passed = 0;
    while (count > 0) {
        size_t half = count / 2;
        if (edges[passed + half] <= value) {
            passed += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return passed;
}

static i64 SET(first_accepted)(const u32 *seeds, const u64 *words, size_t count, const double *direction,
                               size_t tiles, const double *edges, size_t edge_count, const u64 *limits,
                               const double *table) {
    u32 state[16] = {0x61707865, 0x3120646e, 0x79622d36, 0x6b206574}; /* "expand 16-byte k" */
    for (size_t i = 0; i < count; i++) {
        double sums[PARTIAL_SUMS] = {0.0}, z[QB_TILE];
        u64 tile_of[QB_TILE];
        memcpy(state + 4, seeds + 4 * i, 16);
        memcpy(state + 8, seeds + 4 * i, 16);
        for (size_t tile = 0; tile < tiles; tile++) {
            const double *along = direction + QB_TILE * tile;
            SET(tile_words)(state, tile, tile_of);
            SET(tile_normals)(tile_of, table, z);
            for (int j = 0; j < PARTIAL_SUMS; j++) {
                double sum = sums[j] + along[j] * z[j];
                sums[j] = sum + along[PARTIAL_SUMS + j] * z[PARTIAL_SUMS + j];
            }
        }
        for (int half = PARTIAL_SUMS / 2; half > 0; half /= 2) {
            for (int j = 0; j < half; j++) sums[j] += sums[j + half];
        }
        if (words[i] < limits[SET(edges_passed)(edges, edge_count, sums[0])]) return (i64)i;
    }
    return -1;
}

/* Tile by tile, so that the part of the total under a tile's strata stays in the cache. */
static void SET(add_seeds)(const u32 *nonces, const u32 *seeds, size_t payloads, const i64 *starts, size_t rows,
                           double scale, const double *table, i64 *total) {
    u32 row_state[16] = {0x61707865, 0x3120646e, 0x79622d36, 0x6b206574};
    u32 seed_state[16] = {0x61707865, 0x3120646e, 0x79622d36, 0x6b206574};
    u64 words[QB_TILE];
    double z[QB_TILE];
    i64 addend[QB_TILE];
    memcpy(row_state + 4, "quietbit rows v1", 16);
    memcpy(row_state + 8, "quietbit rows v1", 16);
    for (size_t tile = 0; QB_TILE * tile < rows; tile++) {
        const i64 *start = starts + QB_TILE * tile;
        size_t size = rows - QB_TILE * tile < QB_TILE ? rows - QB_TILE * tile : QB_TILE;
        for (size_t p = 0; p < payloads; p++) {
            memcpy(seed_state + 4, seeds + 4 * p, 16);
            memcpy(seed_state + 8, seeds + 4 * p, 16);
            memcpy(row_state + 14, nonces + 2 * p, 8);
            SET(tile_words)(seed_state, tile, words);
            SET(tile_normals)(words, table, z);
            SET(tile_words)(row_state, tile, words);
            for (int i = 0; i < QB_TILE; i++) addend[i] = (i64)nearest(z[i] * scale);
            for (size_t i = 0; i < size; i++) {
                u64 width = (u64)(start[i + 1] - start[i]);
                u64 carried = (words[i] & 0xFFFFFFFFu) * width >> 32;
                u64 offset = ((words[i] >> 32) * width + carried) >> 32;
                total[start[i] + (i64)offset] += addend[i];
            }
        }
    }
}

/* rounded.py, steps_of: `certain` where no rounding and no cell of probability reaches the edge between two multiples.
 * An uncertain step is any number: the caller settles it. */
static void SET(noise_steps)(const double *values, const u64 *words, size_t count, double unit, double grid, int normal,
                             const double *table, double *steps, u8 *certain) {
    const double off = 0x1p-44, reach = 46.0;
    for (size_t at = 0; at < count; at += QB_TILE) {
        size_t size = count - at < QB_TILE ? count - at : QB_TILE;
        u64 some[QB_TILE] = {0};
        double z[QB_TILE], odd[QB_TILE];
        memcpy(some, words + at, 8 * size);
        for (int i = 0; i < QB_TILE; i++) odd[i] = (double)(i64)((some[i] & 0x7FFFFFFFFFFFFFFFu) | 1);
        if (normal) {
            SET(tile_normals)(some, table, z);
        } else {
            for (int i = 0; i < QB_TILE; i++) {
                double share = odd[i] * 0x1p-63;
                double magnitude = -logarithm(share < 1.0 ? share : 1.0);
                z[i] = some[i] >> 63 ? -magnitude : magnitude;
            }
        }
        for (size_t i = 0; i < size; i++) {
            double x = values[at + i], t = (x + unit * z[i]) / grid;
            double whole = nearest(t), size_of_x = x < 0.0 ? -x : x;
            double away = t - whole, size_of_t = t < 0.0 ? -t : t;
            double doubt = (unit * (off + 2.0 / odd[i]) + 0x1p-51 * (size_of_x + reach * unit)) / grid * (1 + 0x1p-20);
            away = away < 0.0 ? -away : away;
            steps[at + i] = whole;
            certain[at + i] = (u8)((away < 0.5 - doubt) & (odd[i] > 1.0) & (size_of_t < 0x1p51));
        }
    }
}

/* ---- packing and counting ----------------------------------------------------------------------------------------- */

/* Ones in the low `width` bits of every `period` bits. */
INLINE u64 SET(mask)(int width, int period) {
    u64 ones = width >= 64 ? ~0ull : (1ull << width) - 1, mask = 0;
    for (int start = 0; start < 64; start += period) mask |= ones << start;
    return mask;
}

/* Eight codes are one word; three shift-and-mask steps squeeze them together. The last groups are written byte by byte:
 * a store of eight bytes would pass the end. */
INLINE void SET(pack_bits)(const u8 *restrict codes, size_t groups, int bits, u8 *restrict out) {
    const u64 one = SET(mask)(bits, 16), two = SET(mask)(2 * bits, 32), four = SET(mask)(4 * bits, 64);
    const int s1 = 8 - bits, s2 = 16 - 2 * bits, s3 = 32 - 4 * bits;
    size_t roomy = groups > 8 ? groups - 8 : 0;
    for (size_t i = 0; i < groups; i++) {
        u64 v;
        memcpy(&v, codes + 8 * i, 8);
        v = (v & one) | (v >> s1 & one << bits);
        v = (v & two) | (v >> s2 & two << 2 * bits);
        v = (v & four) | (v >> s3 & four << 4 * bits);
        if (i < roomy) {
            memcpy(out + (size_t)bits * i, &v, 8);
        } else {
            for (int k = 0; k < bits; k++) out[(size_t)bits * i + (size_t)k] = (u8)(v >> 8 * k);
        }
    }
}

static void SET(pack)(const u8 *codes, size_t groups, int bits, u8 *out) {
    switch (bits) { /* constants let shifts be immediate */
    case 1:
        for (size_t i = 0; i < groups; i++) {
            u64 v;
            memcpy(&v, codes + 8 * i, 8);
            out[i] = (u8)(v * 0x0102040810204080ull >> 56); /* the multiple gathers the eight lowest bits on top */
        }
        return;
    case 2: SET(pack_bits)(codes, groups, 2, out); return;
    case 3: SET(pack_bits)(codes, groups, 3, out); return;
    case 4: SET(pack_bits)(codes, groups, 4, out); return;
    case 5: SET(pack_bits)(codes, groups, 5, out); return;
    case 6: SET(pack_bits)(codes, groups, 6, out); return;
    case 7: SET(pack_bits)(codes, groups, 7, out); return;
    default: memcpy(out, codes, 8 * groups); return;
    }
}

INLINE void SET(unpack_bits)(const u8 *restrict data, size_t groups, int bits, u8 *restrict codes) {
    const u64 one = SET(mask)(bits, 16), two = SET(mask)(2 * bits, 32), four = SET(mask)(4 * bits, 64);
    const int s1 = 8 - bits, s2 = 16 - 2 * bits, s3 = 32 - 4 * bits;
    size_t roomy = groups > 8 ? groups - 8 : 0;
    for (size_t i = 0; i < groups; i++) {
        u64 v = 0;
        if (i < roomy) {
            memcpy(&v, data + (size_t)bits * i, 8);
        } else {
            for (int k = 0; k < bits; k++) v |= (u64)data[(size_t)bits * i + (size_t)k] << 8 * k;
        }
        v = (v & four) | (v & four << 4 * bits) << s3;
        v = (v & two) | (v & two << 2 * bits) << s2;
        v = (v & one) | (v & one << bits) << s1;
        memcpy(codes + 8 * i, &v, 8);
    }
}

/* The same of any number of codes: the last ones, less than eight, by way of a group of their own. */
static void SET(pack_all)(const u8 *codes, size_t count, int bits, u8 *out) {
    u8 group[8] = {0}, packed[8];
    size_t groups = count / 8, left = count % 8;
    SET(pack)(codes, groups, bits, out);
    if (left == 0) return;
    memcpy(group, codes + 8 * groups, left);
    SET(pack)(group, 1, bits, packed);
    memcpy(out + groups * (size_t)bits, packed, (left * (size_t)bits + 7) / 8);
}

static void SET(unpack)(const u8 *data, size_t groups, int bits, u8 *codes) {
    switch (bits) {
    case 1: SET(unpack_bits)(data, groups, 1, codes); return;
    case 2: SET(unpack_bits)(data, groups, 2, codes); return;
    case 3: SET(unpack_bits)(data, groups, 3, codes); return;
    case 4: SET(unpack_bits)(data, groups, 4, codes); return;
    case 5: SET(unpack_bits)(data, groups, 5, codes); return;
    case 6: SET(unpack_bits)(data, groups, 6, codes); return;
    case 7: SET(unpack_bits)(data, groups, 7, codes); return;
    default: memcpy(codes, data, 8 * groups); return;
    }
}

static void SET(unpack_all)(const u8 *data, size_t count, int bits, u8 *codes) {
    u8 packed[8] = {0}, group[8];
    size_t groups = count / 8, left = count % 8;
    SET(unpack)(data, groups, bits, codes);
    if (left == 0) return;
    memcpy(packed, data + groups * (size_t)bits, (left * (size_t)bits + 7) / 8);
    SET(unpack)(packed, 1, bits, group);
    memcpy(codes + 8 * groups, group, left);
}

/* A full adder on 64 coordinates at once: *sum is a + b + c without carry, the result the carries. */
INLINE u64 SET(add_bits)(u64 a, u64 b, u64 c, u64 *sum) {
    u64 half = a ^ b;
    *sum = half ^ c;
    return (a & b) | (half & c);
}

/* Fifteen rows of bits as four planes of counts: eleven full adders (Mula, Kurz, Lemire 2018). */
INLINE void SET(count_planes)(const u64 rows[QB_GROUP][PLANE], u64 planes[4][PLANE]) {
    for (int i = 0; i < PLANE; i++) {
        u64 a, b, c, d, e, f, h, j;
        u64 a2 = SET(add_bits)(rows[0][i], rows[1][i], rows[2][i], &a);
        u64 b2 = SET(add_bits)(rows[3][i], rows[4][i], rows[5][i], &b);
        u64 c2 = SET(add_bits)(rows[6][i], rows[7][i], rows[8][i], &c);
        u64 d2 = SET(add_bits)(rows[9][i], rows[10][i], rows[11][i], &d);
        u64 e2 = SET(add_bits)(rows[12][i], rows[13][i], rows[14][i], &e);
        u64 f2 = SET(add_bits)(a, b, c, &f);
        u64 g2 = SET(add_bits)(d, e, f, &planes[0][i]);
        u64 h4 = SET(add_bits)(a2, b2, c2, &h);
        u64 j4 = SET(add_bits)(d2, e2, f2, &j);
        u64 k4 = SET(add_bits)(g2, h, j, &planes[1][i]);
        planes[3][i] = SET(add_bits)(h4, j4, k4, &planes[2][i]);
    }
}

/* The eight bits of a byte as eight bytes. */
INLINE u64 SET(spread)(u64 byte) {
    return ((byte & 0x7F) * 0x02040810204081ull & 0x0101010101010101ull) | byte >> 7 << 56;
}

static void SET(count_ones)(const u8 *const *payloads, int payload_count, i64 base, i64 step, void *total, int wide,
                            size_t first, size_t last) {
    u64 rows[QB_GROUP][PLANE], planes[4][PLANE];
    u8 counts[64 * PLANE];
    memset(rows, 0, sizeof rows);
    for (size_t at = first; at < last; at += 64 * PLANE) {
        size_t size = last - at < 64 * PLANE ? last - at : 64 * PLANE;
        for (int p = 0; p < payload_count; p++) memcpy(rows[p], payloads[p] + at / 8, (size + 7) / 8);
        SET(count_planes)((const u64(*)[PLANE])rows, planes);
        for (int i = 0; i < PLANE; i++) {
            for (int k = 0; k < 8; k++) {
                u64 eight = SET(spread)(planes[0][i] >> 8 * k & 255) | SET(spread)(planes[1][i] >> 8 * k & 255) << 1 |
                            SET(spread)(planes[2][i] >> 8 * k & 255) << 2 | SET(spread)(planes[3][i] >> 8 * k & 255) << 3;
                memcpy(counts + 64 * i + 8 * k, &eight, 8);
            }
        }
        if (wide) {
            i64 *to = (i64 *)total + at;
            for (size_t i = 0; i < size; i++) to[i] += base + step * counts[i];
        } else { /* as unsigned numbers, which wrap around; the caller ensures that sums fit */
            u32 *to = (u32 *)total + at, zeros = (u32)base, times = (u32)step;
            for (size_t i = 0; i < size; i++) to[i] += zeros + times * counts[i];
        }
    }
}

/* Codes of nine bits or more, bit by bit of the stream. */
static void SET(unpack_long)(const u8 *data, size_t count, size_t bits, u16 *codes) {
    for (size_t i = 0; i < count; i++) {
        size_t at = i * bits, end = (at + bits + 7) / 8;
        u32 value = 0;
        for (size_t byte = at / 8; byte < end; byte++) value |= (u32)data[byte] << 8 * (byte - at / 8);
        codes[i] = (u16)(value >> at % 8 & ((1u << bits) - 1));
    }
}

static void SET(accumulate)(const u8 *const *payloads, int payload_count, int bits, const i64 *table, void *total,
                            int wide, size_t first, size_t last) {
    if (bits == 1) {
        SET(count_ones)(payloads, payload_count, payload_count * table[0], table[1] - table[0], total, wide, first, last);
        return;
    }
    u16 long_codes[PIECE];
    u8 codes[PIECE];
    for (size_t at = first; at < last; at += PIECE) {
        size_t size = last - at < PIECE ? last - at : PIECE;
        i64 *doubles = (i64 *)total + at;
        u32 *singles = (u32 *)total + at; /* unsigned numbers wrap around; the caller ensures that sums fit */
        for (int p = 0; p < payload_count; p++) {
            const u8 *data = payloads[p] + at * (size_t)bits / 8;
            if (bits <= 8) SET(unpack_all)(data, size, bits, codes);
            else SET(unpack_long)(data, size, (size_t)bits, long_codes);
            if (bits <= 8 && wide) {
                for (size_t i = 0; i < size; i++) doubles[i] += table[codes[i]];
            } else if (bits <= 8) {
                for (size_t i = 0; i < size; i++) singles[i] += (u32)table[codes[i]];
            } else if (wide) {
                for (size_t i = 0; i < size; i++) doubles[i] += table[long_codes[i]];
            } else {
                for (size_t i = 0; i < size; i++) singles[i] += (u32)table[long_codes[i]];
            }
        }
    }
}

/* ---- the exact law (sampler.py, reference.py) ----------------------------------------------------------------------- */

/* The segment whose ends enclose t, as pairs; the outer ones are unbounded. */
INLINE size_t SET(segment)(const qb_law *law, double t, double t_low) {
    i64 last = law->levels - 2;
    double place = (t + 0.5) * (law->levels - 1);
    i64 index = (i64)place; /* |place| is far below 2^63 */
    if ((double)index > place) index--;
    index = index < 0 ? 0 : index > last ? last : index;
    int below = ((t - law->knots[index]) + (t_low - law->knots_tail[index])) < 0;
    int above = ((t - law->knots[index + 1]) + (t_low - law->knots_tail[index + 1])) >= 0;
    index += above - below;
    return (size_t)(index < 0 ? 0 : index > last ? last : index);
}

/* The unnormalised weights of all symbols. */
INLINE void SET(weights)(const qb_law *law, double t, double t_low, int symbols, double *weight) {
    double low[1 << QB_MAX_BITS], peak = -0x1.fffffffffffffp1023;
    size_t row = SET(segment)(law, t, t_low) * (size_t)symbols;
    const double *base = law->base + row, *base_tail = law->base_tail + row;
    const double *slope = law->slope + row, *slope_tail = law->slope_tail + row;
    for (int j = 0; j < symbols; j++) {
        pair product = two_product(slope[j], t);
        pair total = two_sum(base[j], product.high);
        double tail = (product.low + (slope[j] * t_low + slope_tail[j] * t)) + base_tail[j];
        weight[j] = total.high;
        low[j] = tail + total.low;
    }
    for (int j = 0; j < symbols; j++) peak = weight[j] > peak ? weight[j] : peak;
    for (int j = 0; j < symbols; j++) {
        pair difference = two_sum(weight[j], -peak);
        double d = difference.high > -700.0 ? difference.high : -700.0;
        double shifted = d * 1.4426950408889634 + 6755399441055744.0; /* the sum's last bits are a whole number */
        double k = shifted - 6755399441055744.0;
        double r = (d - k * 0.6931471803691238) - (k * 1.9082149292705877e-10 - (low[j] + difference.low));
        weight[j] = exponential(r) * double_of((bits_of(shifted) + 1023) << 52);
    }
}

static void SET(resolve)(const qb_law *law, const undecided_list *undecided, const u64 *ties, size_t count, u8 *out) {
    const double ceiling = 0x1p100;
    const int symbols = 1 << law->bits;
    double sums[1 << QB_MAX_BITS];
    for (size_t i = 0; i < count; i++) {
        double scaled = undecided->value[i] * law->gain[0] * law->gain[1];
        scaled = scaled > -ceiling ? scaled : -ceiling;
        scaled = scaled < ceiling ? scaled : ceiling;
        pair product = two_product(scaled, law->gain[2]);
        double lost = product.low + scaled * law->gain[3];
        double t = product.high + lost;
        double t_low = lost - (t - product.high);
        if (((t - law->clamp[0]) + t_low) < 0) {
            t = law->clamp[0];
            t_low = 0.0;
        } else if (((t - law->clamp[1]) + t_low) > 0) {
            t = law->clamp[1];
            t_low = 0.0;
        }
        SET(weights)(law, t, t_low, symbols, sums);
        for (int half = 1; half < symbols; half *= 2) { /* Sklansky's order */
            for (int start = half; start < symbols; start += 2 * half) {
                double left = sums[start - 1];
                for (int j = start; j < start + half; j++) sums[j] += left;
            }
        }
        i64 first = undecided->word[i], second = (i64)(ties[i] & 0xFFFFFFFFFFFFu);
        unsigned code = 0;
        for (int k = 0; k < symbols - 1; k++) {
            double up = sums[k] / sums[symbols - 1] * 65536.0; /* not negative: cutting off is rounding down */
            i64 upper = (i64)up, lower = (i64)((up - (double)upper) * 0x1p48);
            code += (first > upper) | ((first == upper) & (second >= lower));
        }
        for (int j = 0; j < law->bits; j++) {
            u64 at = (u64)undecided->index[i] * (u64)law->bits + (u64)j;
            unsigned mask = 1u << at % 8;
            out[at / 8] = (u8)((out[at / 8] & ~mask) | (code >> j & 1 ? mask : 0));
        }
    }
}

/* ---- one bit: words compared with floors ------------------------------------------------------------------------------ */

/* Bit k of `codes` is whether word k reaches its floor; of `open`, whether it does so by `width` or less. The
 * difference wraps around, which at worst asks once too often. `count` is a multiple of 64. */
static void SET(compare)(const u16 *restrict words, const u16 *restrict floors, u16 width, int count,
                         u64 *restrict codes, u64 *restrict open) {
#if VECTOR_LANES == 16
    const __m512i limit = _mm512_set1_epi16((short)width);
    for (int i = 0; i < count / 64; i++) {
        u64 code_bits = 0, open_bits = 0;
        for (int half = 0; half < 2; half++) {
            __m512i word = _mm512_loadu_si512(words + 64 * i + 32 * half);
            __m512i floor = _mm512_loadu_si512(floors + 64 * i + 32 * half);
            code_bits |= (u64)_mm512_cmpge_epu16_mask(word, floor) << 32 * half;
            open_bits |= (u64)_mm512_cmple_epu16_mask(_mm512_sub_epi16(word, floor), limit) << 32 * half;
        }
        codes[i] = code_bits;
        open[i] = open_bits;
    }
#elif VECTOR_LANES == 8
    const __m256i limit = _mm256_set1_epi16((short)width), zero = _mm256_setzero_si256();
    for (int i = 0; i < count / 64; i++) {
        u64 code_bits = 0, open_bits = 0;
        for (int half = 0; half < 2; half++) {
            __m256i is_code[2], is_open[2];
            for (int k = 0; k < 2; k++) {
                __m256i word = _mm256_loadu_si256((const __m256i *)(words + 64 * i + 32 * half + 16 * k));
                __m256i floor = _mm256_loadu_si256((const __m256i *)(floors + 64 * i + 32 * half + 16 * k));
                /* a saturated difference is zero where the first is not larger */
                is_code[k] = _mm256_cmpeq_epi16(_mm256_subs_epu16(floor, word), zero);
                is_open[k] = _mm256_cmpeq_epi16(_mm256_subs_epu16(_mm256_sub_epi16(word, floor), limit), zero);
            }
            /* packing works within halves of a register: put the quarters back in order */
            __m256i code_bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(is_code[0], is_code[1]), 0xD8);
            __m256i open_bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(is_open[0], is_open[1]), 0xD8);
            code_bits |= (u64)(u32)_mm256_movemask_epi8(code_bytes) << 32 * half;
            open_bits |= (u64)(u32)_mm256_movemask_epi8(open_bytes) << 32 * half;
        }
        codes[i] = code_bits;
        open[i] = open_bits;
    }
#else
    for (int i = 0; i < count / 64; i++) {
        u8 code_byte[64], open_byte[64], packed[8], open_packed[8];
        for (int j = 0; j < 64; j++) {
            u16 word = words[64 * i + j], floor = floors[64 * i + j];
            code_byte[j] = word >= floor;
            open_byte[j] = (u16)(word - floor) <= width;
        }
        SET(pack)(code_byte, 8, 1, packed);
        SET(pack)(open_byte, 8, 1, open_packed);
        memcpy(codes + i, packed, 8);
        memcpy(open + i, open_packed, 8);
    }
#endif
}

#if VECTOR_LANES == 16
/* The floors of sixteen values, as one register of 16-bit numbers. A NaN becomes the low end: of two numbers one of
 * which is none, the maximum is the second. */
INLINE __m256i SET(floors_of_sixteen)(const float *x, const qb_polynomial *plan, int coefficients) {
    __m512 z = _mm512_fmadd_ps(_mm512_loadu_ps(x), _mm512_set1_ps((float)plan->gain),
                               _mm512_set1_ps((float)plan->shift));
    z = _mm512_min_ps(_mm512_max_ps(z, _mm512_set1_ps(plan->low)), _mm512_set1_ps(1.0f));
    __m512 q = _mm512_set1_ps(plan->coefficient[0]);
    for (int k = 1; k < coefficients; k++) q = _mm512_fmadd_ps(q, z, _mm512_set1_ps(plan->coefficient[k]));
    return _mm512_cvtepi32_epi16(_mm512_cvttps_epi32(q));
}

/* `polynomial` and `compare` at once, for a multiple of 64 float values: floors never leave the registers. */
INLINE void SET(decide)(const float *restrict x, const u16 *restrict words, const qb_polynomial *plan, int count,
                        int coefficients, u64 *restrict codes, u64 *restrict open) {
    const __m512i limit = _mm512_set1_epi16((short)plan->width);
    for (int i = 0; i < count; i += 32) {
        __m512i floor = _mm512_castsi256_si512(SET(floors_of_sixteen)(x + i, plan, coefficients));
        floor = _mm512_inserti64x4(floor, SET(floors_of_sixteen)(x + i + 16, plan, coefficients), 1);
        __m512i word = _mm512_loadu_si512(words + i);
        u32 code_bits = _mm512_cmpge_epu16_mask(word, floor);
        u32 open_bits = _mm512_cmple_epu16_mask(_mm512_sub_epi16(word, floor), limit);
        memcpy((u8 *)codes + i / 8, &code_bits, 4);
        memcpy((u8 *)open + i / 8, &open_bits, 4);
    }
}

static void SET(decide_floats)(const float *x, const u16 *words, const qb_polynomial *plan, int count, u64 *codes,
                               u64 *open) {
    switch (plan->count) { /* the usual degrees, unrolled */
    case 4: SET(decide)(x, words, plan, count, 4, codes, open); break;
    case 6: SET(decide)(x, words, plan, count, 6, codes, open); break;
    case 8: SET(decide)(x, words, plan, count, 8, codes, open); break;
    default: SET(decide)(x, words, plan, count, plan->count, codes, open); break;
    }
}
#endif

#define REAL float
#define REAL_SET(name) SET(name##_f32)
#define MULTIPLY_ADD MULTIPLY_ADD_F32
#define REAL_BITS u32
#define REAL_BYTES 4
#define REAL_LANES VECTOR_LANES
#include "real_passes.h"
#undef REAL
#undef REAL_SET
#undef MULTIPLY_ADD
#undef REAL_BITS
#undef REAL_BYTES
#undef REAL_LANES

#define REAL double
#define REAL_SET(name) SET(name##_f64)
#define MULTIPLY_ADD MULTIPLY_ADD_F64
#define REAL_BITS u64
#define REAL_BYTES 8
#define REAL_LANES (VECTOR_LANES / 2)
#include "real_passes.h"
#undef REAL
#undef REAL_SET
#undef MULTIPLY_ADD
#undef REAL_BITS
#undef REAL_BYTES
#undef REAL_LANES

/* ---- an update: norms, signs, and sampling ------------------------------------------------------------------------- */

static void SET(norm_sums)(const qb_update *update, double scale, int order, double *out, i64 first, i64 last) {
    float room[QB_NORM_BLOCK];
    for (i64 block = first; block < last;) {
        const qb_part *part = part_at(update, block, 1);
        i64 at = (block - part->block) * QB_NORM_BLOCK, size = part->size - at;
        if (!FULL(part->kind > QB_DOUBLE)) { /* all of its blocks at once */
            if (size > (last - block) * QB_NORM_BLOCK) size = (last - block) * QB_NORM_BLOCK;
            if (part->kind == QB_DOUBLE) {
                SET(block_sums_f64)((const double *)part->values + at, (size_t)size, scale, order, out + block);
            } else {
                SET(block_sums_f32)((const float *)part->values + at, (size_t)size, scale, order, out + block);
            }
        } else {
            if (size > QB_NORM_BLOCK) size = QB_NORM_BLOCK;
            copy_values(part, at, (size_t)size, room, 0, 0);
            SET(block_sums_f32)(room, (size_t)size, scale, order, out + block);
        }
        block += (size + QB_NORM_BLOCK - 1) / QB_NORM_BLOCK;
    }
}

static void SET(flip_range)(const qb_update *update, double factor, const u32 *signs, void *out, int out_wide, i64 first,
                            i64 last) {
    double room[QB_NORM_BLOCK];
    for (i64 at = first; at < last; at += QB_NORM_BLOCK) {
        size_t size = last - at < QB_NORM_BLOCK ? (size_t)(last - at) : QB_NORM_BLOCK;
        int wide;
        const void *x = values_at(update, at, size, room, &wide);
        void *to = (u8 *)out + at * (out_wide ? 8 : 4);
        if (wide) SET(flip_f64)(x, size, factor, signs + at / 32, to, out_wide);
        else SET(flip_f32)(x, size, factor, signs + at / 32, to, out_wide);
    }
}

/* Sample at most a tile of values, of which the first is coordinate `start`, and settle those that stay open. */
static double SET(sample_tile)(const qb_sampling *how, const void *x, int wide, i64 start, size_t count, u8 *out) {
    enum { SETTLED = 64 };
    u16 words[QB_PRIMARY_TILE], listed_word[QB_PRIMARY_TILE];
    i64 index[QB_PRIMARY_TILE];
    double value[QB_PRIMARY_TILE], total = 0.0;
    u64 ties[SETTLED];
    const undecided_list undecided = {index, listed_word, value};
    size_t listed;
    u8 *here = out + (u64)start * (u64)how->bits / 8;
    SET(primary_words)(how->random, start, count, words);
    if (wide) listed = SET(sample_f64)(how, x, words, start, count, here, &undecided, 0, &total);
    else listed = SET(sample_f32)(how, x, words, start, count, here, &undecided, 0, &total);
    for (size_t at = 0; at < listed; at += SETTLED) {
        size_t some = listed - at < SETTLED ? listed - at : SETTLED;
        const undecided_list rest = {index + at, listed_word + at, value + at};
        tie_words(how->random, index + at, some, ties);
        SET(resolve)(how->law, &rest, ties, some, out);
    }
    return total;
}

/* `count` values from coordinate `at` on, scaled and rotated; they may be the end of an update, which another block
 * overlaps. */
static void SET(rotated)(const qb_rotation *rotation, const qb_update *update, i64 at, size_t count, float *x) {
    const size_t block = (size_t)rotation->block;
    const u32 *signs = rotation->signs + at / 32;
    double room[QB_NORM_BLOCK];
    for (size_t done = 0; done < count; done += QB_NORM_BLOCK) {
        size_t size = count - done < QB_NORM_BLOCK ? count - done : QB_NORM_BLOCK;
        int wide;
        const void *from = values_at(update, at + (i64)done, size, room, &wide);
        if (wide) SET(flip_f64)(from, size, rotation->factor, signs + done / 32, x + done, 0);
        else SET(flip_f32)(from, size, rotation->factor, signs + done / 32, x + done, 0);
    }
    SET(transform_f32)(x, count / block * block, block, 0, 0, 0, 0, 1);
    if (rotation->last_signs && at + (i64)count == rotation->size) {
        float *last = x + count - block;
        SET(flip_f32)(last, block, 1.0, rotation->last_signs, last, 0);
        SET(transform_f32)(last, block, block, 0, 0, 0, 0, 1);
    }
}

/* Tile by tile, so that values, words and codes stay in the cache; the tiles' sums are added with what rounding lost. */
static double SET(sample_range)(const qb_sampling *how, const qb_update *update, u8 *out, i64 first, i64 last) {
    enum { TILE = QB_PRIMARY_TILE };
    double room[TILE];
    float turned[2 * TILE];
    pair total = {0.0, 0.0};
    for (i64 at = first; at < last;) {
        size_t size = last - at < TILE ? (size_t)(last - at) : TILE;
        const void *x = turned;
        int wide = 0;
        if (FULL(how->rotation != 0)) {
            if (last - at < 2 * TILE) size = (size_t)(last - at); /* an overlapping block joins the one before it */
            SET(rotated)(how->rotation, update, at, size, turned);
        } else {
            x = values_at(update, at, size, room, &wide);
        }
        for (size_t done = 0; done < size; done += TILE) {
            size_t some = size - done < TILE ? size - done : TILE;
            const u8 *values = (const u8 *)x + (wide ? 8 : 4) * done;
            pair sum = two_sum(total.high, SET(sample_tile)(how, values, wide, at + (i64)done, some, out));
            total = (pair){sum.high, total.low + sum.low};
        }
        at += (i64)size;
    }
    return total.high + total.low;
}
