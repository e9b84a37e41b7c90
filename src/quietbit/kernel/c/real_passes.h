/* The loops over coordinates, compiled for float and for double: REAL is the type, REAL_SET(name) the function's name. */

/* ---- norms (norm.py) and the second look -------------------------------------------------------------------------- */

INLINE void REAL_SET(add_row)(const REAL *restrict x, int count, double scale, int order, double *restrict lanes) {
    for (int j = 0; j < count; j++) {
        double value = scale == 1.0 ? (double)x[j] : (double)x[j] * scale;
        lanes[j] += order == 2 ? value * value : value < 0.0 ? -value : value;
    }
}

/* One sum per block of 4,096: 16 rows of 256 lanes one after the other, then lanes by halving. */
static void REAL_SET(block_sums)(const void *values, size_t count, double scale, int order, double *out) {
    const REAL *x = values;
    for (size_t block = 0; block * QB_NORM_BLOCK < count; block++) {
        double lanes[LANES] = {0.0};
        size_t end = count - block * QB_NORM_BLOCK < QB_NORM_BLOCK ? count : (block + 1) * QB_NORM_BLOCK;
        for (size_t at = block * QB_NORM_BLOCK; at < end; at += LANES) {
            int size = end - at < LANES ? (int)(end - at) : LANES;
            if (size < LANES) REAL_SET(add_row)(x + at, size, scale, order, lanes);
            else if (order == 2 && scale == 1.0) REAL_SET(add_row)(x + at, LANES, 1.0, 2, lanes);
            else if (order == 2) REAL_SET(add_row)(x + at, LANES, scale, 2, lanes);
            else REAL_SET(add_row)(x + at, LANES, scale, 1, lanes);
        }
        for (int half = LANES / 2; half > 0; half /= 2) {
            for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
        }
        out[block] = lanes[0];
    }
}

/* Copy values into private memory and add up |value|^order of the copy: each is loaded once, and whoever writes to the
 * update meanwhile changes neither. The order of the sum is free. */
INLINE double REAL_SET(look)(const REAL *restrict x, REAL *restrict copy, int count, int order) {
    double sums[32] = {0.0}, total = 0.0;
    int i = 0;
    for (; i + 32 <= count; i += 32) {
        for (int j = 0; j < 32; j++) {
            REAL value = x[i + j];
            double wide = (double)value;
            copy[i + j] = value;
            sums[j] = order == 2 ? MULTIPLY_ADD_F64(wide, wide, sums[j]) : sums[j] + (wide < 0.0 ? -wide : wide);
        }
    }
    for (; i < count; i++) {
        REAL value = x[i];
        double wide = (double)value;
        copy[i] = value;
        total += order == 2 ? wide * wide : wide < 0.0 ? -wide : wide;
    }
    for (int j = 0; j < 32; j++) total += sums[j];
    return total;
}

/* The values of a piece: themselves, or with an order their private copy, measured into *total. */
INLINE const REAL *REAL_SET(looked)(const REAL *x, REAL *copy, int count, int order, double *total) {
    if (order == 0) return x;
    *total += order == 2 ? REAL_SET(look)(x, copy, count, 2) : REAL_SET(look)(x, copy, count, 1);
    return copy;
}

INLINE size_t REAL_SET(list)(const undecided_list *undecided, size_t listed, i64 index, u16 word, REAL value) {
    undecided->index[listed] = index;
    undecided->word[listed] = word;
    undecided->value[listed] = (double)value;
    return listed + 1;
}

/* ---- one bit (tables.py, "One bit") --------------------------------------------------------------------------------- */

INLINE void REAL_SET(polynomial)(const REAL *restrict x, const qb_polynomial *plan, int count, int coefficients,
                                 u16 *restrict floors) {
    const REAL gain = (REAL)plan->gain, shift = (REAL)plan->shift;
    const float low = plan->low, *c = plan->coefficient;
    for (int i = 0; i < count; i++) {
        float z = (float)MULTIPLY_ADD(x[i], gain, shift);
        z = z > low ? z : low; /* a NaN becomes the low end */
        z = z < 1.0f ? z : 1.0f;
        float q = c[0];
        for (int k = 1; k < coefficients; k++) q = MULTIPLY_ADD_F32(q, z, c[k]);
        floors[i] = (u16)(int32_t)q;
    }
}

INLINE void REAL_SET(floors)(const REAL *x, const qb_polynomial *plan, int count, u16 *floors) {
    switch (plan->count) { /* the usual degrees, unrolled */
    case 4: REAL_SET(polynomial)(x, plan, count, 4, floors); break;
    case 6: REAL_SET(polynomial)(x, plan, count, 6, floors); break;
    case 8: REAL_SET(polynomial)(x, plan, count, 8, floors); break;
    default: REAL_SET(polynomial)(x, plan, count, plan->count, floors); break;
    }
}

static size_t REAL_SET(sample_one_bit)(const qb_polynomial *plan, int order, const REAL *x, const u16 *words, i64 start,
                                       size_t count, u8 *out, const undecided_list *undecided, size_t listed,
                                       double *total) {
    REAL copy[PIECE];
    u16 floors[PIECE], last_words[PIECE];
    u64 codes[PIECE / 64], open[PIECE / 64];
    for (size_t at = 0; at < count; at += PIECE) {
        int size = count - at < PIECE ? (int)(count - at) : PIECE;
        int rounded = (size + 63) / 64 * 64;
        const REAL *piece = REAL_SET(looked)(x + at, copy, size, order, total);
        const u16 *here = words + at;
        if (size < rounded) { /* words below their floors beyond the end: code 0, and far from it */
            memcpy(last_words, here, 2 * (size_t)size);
            memset(last_words + size, 0, 2 * (size_t)(rounded - size));
            here = last_words;
        }
#if VECTOR_LANES == 16 && REAL_BYTES == 4
        if (size == rounded) {
            SET(decide_floats)(piece, here, plan, size, codes, open);
        } else
#endif
        {
            REAL_SET(floors)(piece, plan, size, floors);
            for (int i = size; i < rounded; i++) floors[i] = 0x8000;
            SET(compare)(here, floors, (u16)plan->width, rounded, codes, open);
        }
        memcpy(out + at / 8, codes, (size_t)(size + 7) / 8);
        for (int i = 0; i < rounded / 64; i++) {
            for (u64 left = open[i]; left != 0; left &= left - 1) {
                int j = 64 * i + __builtin_ctzll(left);
                listed = REAL_SET(list)(undecided, listed, start + (i64)at + j, here[j], piece[j]);
            }
        }
    }
    return listed;
}

/* ---- one bit or more, by cells (tables.py, CellTable) ----------------------------------------------------------------- */

/* Cell and fraction of each value, in doubles; a NaN becomes the low end. */
INLINE void REAL_SET(positions)(const REAL *restrict x, const qb_cells *plan, int count, int32_t *restrict cell,
                                float *restrict part) {
    const double gain = plan->gain, low = plan->low, high = plan->high, inverse = plan->inverse, offset = plan->offset;
    const double top = (double)plan->cells * (1.0 - 0x1p-53); /* below the number of cells */
    for (int i = 0; i < count; i++) {
        double t = (double)x[i] * gain;
        t = t > low ? t : low;
        t = t < high ? t : high;
        double p = MULTIPLY_ADD_F64(t, inverse, offset);
        p = p > 0.0 ? p : 0.0;
        p = p < top ? p : top;
        cell[i] = (int32_t)p;
        part[i] = (float)(p - (double)cell[i]);
    }
}

/* Compare open coordinates with the thresholds in question; list those that are too close to one. */
INLINE size_t REAL_SET(compare_lines)(const qb_cells *plan, const int32_t *open, int open_count, const REAL *x,
                                      const u16 *words, const int32_t *cell, const float *part, u8 *codes, i64 start,
                                      const undecided_list *undecided, size_t listed) {
    const int lines = (1 << plan->bits) - 1;
    for (int n = 0; n < open_count; n++) {
        int i = open[n];
        size_t row = (size_t)cell[i], entry = 256 * row + (words[i] >> 8);
        const float *line_start = plan->start + row * (size_t)lines, *line_step = plan->step + row * (size_t)lines;
        float word = (float)words[i], place = part[i];
        int first = plan->lowest[entry], last = plan->highest[entry], code = first, decided = 1;
        for (int k = first; k < last; k++) {
            float distance = word - (line_start[k] + line_step[k] * place);
            float size = distance < 0.0f ? -distance : distance;
            code += distance > 0.0f;
            decided &= size >= plan->half; /* false for a NaN: nothing is decided by it */
        }
        codes[i] = (u8)code;
        if (!decided) listed = REAL_SET(list)(undecided, listed, start + i, words[i], x[i]);
    }
    return listed;
}

static size_t REAL_SET(sample_cells)(const qb_cells *plan, int order, const REAL *x, const u16 *words, i64 start,
                                     size_t count, u8 *out, const undecided_list *undecided, size_t listed,
                                     double *total) {
    const size_t bits = (size_t)plan->bits;
    REAL copy[PIECE];
    float part[PIECE];
    int32_t cell[PIECE], open[PIECE + 1];
    u8 codes[PIECE], packed[PIECE];
    for (size_t at = 0; at < count; at += PIECE) {
        int size = count - at < PIECE ? (int)(count - at) : PIECE, open_count = 0;
        const REAL *piece = REAL_SET(looked)(x + at, copy, size, order, total);
        const u16 *here = words + at;
        REAL_SET(positions)(piece, plan, size, cell, part);
        for (int i = 0; i < size; i++) codes[i] = plan->code[256 * (size_t)cell[i] + (here[i] >> 8)];
        for (int i = 0; i < size; i++) { /* no branch, which would be guessed wrong too often */
            open[open_count] = i;
            open_count += codes[i] == 255;
        }
        listed = REAL_SET(compare_lines)(plan, open, open_count, piece, here, cell, part, codes, start + (i64)at,
                                         undecided, listed);
        memset(codes + size, 0, (size_t)(PIECE - size));
        SET(pack)(codes, ((size_t)size + 7) / 8, plan->bits, packed);
        memcpy(out + at * bits / 8, packed, ((size_t)size * bits + 7) / 8);
    }
    return listed;
}

/* ---- no plan, or one of both ------------------------------------------------------------------------------------------- */

/* A gain that no plan can hold: all goes to the exact law, which takes any. */
static size_t REAL_SET(leave_open)(const qb_sampling *how, const REAL *x, const u16 *words, i64 start, size_t count,
                                   u8 *out, const undecided_list *undecided, size_t listed, double *total) {
    REAL copy[PIECE];
    memset(out, 0, (count * (size_t)how->bits + 7) / 8);
    for (size_t at = 0; at < count; at += PIECE) {
        int size = count - at < PIECE ? (int)(count - at) : PIECE;
        const REAL *piece = REAL_SET(looked)(x + at, copy, size, how->order, total);
        for (int i = 0; i < size; i++) {
            listed = REAL_SET(list)(undecided, listed, start + (i64)at + i, words[at + (size_t)i], piece[i]);
        }
    }
    return listed;
}

static size_t REAL_SET(sample)(const qb_sampling *how, const void *x, const u16 *words, i64 start, size_t count,
                               u8 *out, const undecided_list *undecided, size_t listed, double *total) {
    if (how->polynomial) {
        return REAL_SET(sample_one_bit)(how->polynomial, how->order, x, words, start, count, out, undecided, listed,
                                        total);
    }
    if (how->cells) {
        return REAL_SET(sample_cells)(how->cells, how->order, x, words, start, count, out, undecided, listed, total);
    }
    return REAL_SET(leave_open)(how, x, words, start, count, out, undecided, listed, total);
}

/* ---- rotation (transform.py) -------------------------------------------------------------------------------------------- */

INLINE void REAL_SET(flip_to_float)(const REAL *restrict x, size_t count, double factor, u32 signs, float *restrict out) {
    for (size_t j = 0; j < count; j++) {
        float scaled = (float)((double)x[j] * factor);
        u32 bits;
        memcpy(&bits, &scaled, 4);
        bits ^= signs & single_bits[j] ? 0x80000000u : 0;
        memcpy(out + j, &bits, 4);
    }
}

INLINE void REAL_SET(flip_to_double)(const REAL *restrict x, size_t count, double factor, u32 signs,
                                     double *restrict out) {
    for (size_t j = 0; j < count; j++) {
        double scaled = (double)x[j] * factor;
        out[j] = double_of(bits_of(scaled) ^ (signs & single_bits[j] ? 1ull << 63 : 0));
    }
}

static void REAL_SET(flip)(const void *values, size_t count, double factor, const u32 *signs, void *out, int out_wide) {
    REAL some[32];
    for (size_t at = 0; at < count; at += 32) {
        size_t size = count - at < 32 ? count - at : 32;
        const REAL *x = (const REAL *)values + at;
        if (values == out) { /* in place: read all before anything is written */
            memcpy(some, x, size * sizeof(REAL));
            x = some;
        }
        if (out_wide) {
            if (size == 32) REAL_SET(flip_to_double)(x, 32, factor, signs[at / 32], (double *)out + at);
            else REAL_SET(flip_to_double)(x, size, factor, signs[at / 32], (double *)out + at);
        } else {
            if (size == 32) REAL_SET(flip_to_float)(x, 32, factor, signs[at / 32], (float *)out + at);
            else REAL_SET(flip_to_float)(x, size, factor, signs[at / 32], (float *)out + at);
        }
    }
}

/* A register of numbers, and of their bits; loads and stores need no alignment. */
typedef REAL REAL_SET(lanes) __attribute__((vector_size(4 * VECTOR_LANES), aligned(REAL_BYTES), may_alias));
typedef REAL_BITS REAL_SET(lane_bits) __attribute__((vector_size(4 * VECTOR_LANES)));

/* One stage inside a register: lanes whose number has the bit of the stage get the difference, the others the sum.
 * a - b is a + (-b), and b + a is a + b, to the last bit. */
#undef LANE_STAGE
#define LANE_STAGE(v, swapped, bit) \
    do { \
        REAL_SET(lane_bits) minus; \
        for (int lane = 0; lane < REAL_LANES; lane++) { \
            minus[lane] = lane & (bit) ? (REAL_BITS)1 << (8 * REAL_BYTES - 1) : 0; \
        } \
        REAL_SET(lanes) partner = swapped; \
        (v) = partner + (REAL_SET(lanes))((REAL_SET(lane_bits))(v) ^ minus); \
    } while (0)

/* All stages inside registers. */
INLINE REAL_SET(lanes) REAL_SET(inside_register)(REAL_SET(lanes) v) {
#if REAL_LANES == 2
    LANE_STAGE(v, SWAP_2_1(v, REAL_SET(lane_bits)), 1);
#elif REAL_LANES == 4
    LANE_STAGE(v, SWAP_4_1(v, REAL_SET(lane_bits)), 1);
    LANE_STAGE(v, SWAP_4_2(v, REAL_SET(lane_bits)), 2);
#elif REAL_LANES == 8
    LANE_STAGE(v, SWAP_8_1(v, REAL_SET(lane_bits)), 1);
    LANE_STAGE(v, SWAP_8_2(v, REAL_SET(lane_bits)), 2);
    LANE_STAGE(v, SWAP_8_4(v, REAL_SET(lane_bits)), 4);
#else
    LANE_STAGE(v, SWAP_16_1(v, REAL_SET(lane_bits)), 1);
    LANE_STAGE(v, SWAP_16_2(v, REAL_SET(lane_bits)), 2);
    LANE_STAGE(v, SWAP_16_4(v, REAL_SET(lane_bits)), 4);
    LANE_STAGE(v, SWAP_16_8(v, REAL_SET(lane_bits)), 8);
#endif
    return v;
}

INLINE int REAL_SET(all_zero)(const REAL *x, size_t count) {
    REAL_BITS any = 0;
    for (size_t i = 0; i < count; i++) {
        REAL_BITS bits;
        memcpy(&bits, x + i, sizeof bits);
        any |= bits;
    }
    return any == 0; /* a negative zero is not */
}

/* Join two, four or eight rows of `count` entries, a multiple of the lanes: one, two or three stages with one pass over
 * memory. */
INLINE void REAL_SET(join_two)(REAL *x, size_t half, size_t count) {
    for (size_t j = 0; j < count; j += REAL_LANES) {
        REAL_SET(lanes) *a = (void *)(x + j), *b = (void *)(x + j + half);
        REAL_SET(lanes) p = *a, q = *b;
        *a = p + q;
        *b = p - q;
    }
}

INLINE void REAL_SET(join_four)(REAL *x, size_t half, size_t count) {
    for (size_t j = 0; j < count; j += REAL_LANES) {
        REAL_SET(lanes) *a = (void *)(x + j), *b = (void *)(x + j + half);
        REAL_SET(lanes) *c = (void *)(x + j + 2 * half), *d = (void *)(x + j + 3 * half);
        REAL_SET(lanes) p = *a + *b, q = *a - *b, r = *c + *d, s = *c - *d;
        *a = p + r;
        *b = q + s;
        *c = p - r;
        *d = q - s;
    }
}

INLINE void REAL_SET(join_eight)(REAL *x, size_t half, size_t count) {
    for (size_t j = 0; j < count; j += REAL_LANES) {
        REAL_SET(lanes) *a = (void *)(x + j), *b = (void *)(x + j + half);
        REAL_SET(lanes) *c = (void *)(x + j + 2 * half), *d = (void *)(x + j + 3 * half);
        REAL_SET(lanes) *e = (void *)(x + j + 4 * half), *f = (void *)(x + j + 5 * half);
        REAL_SET(lanes) *g = (void *)(x + j + 6 * half), *h = (void *)(x + j + 7 * half);
        REAL_SET(lanes) p = *a + *b, q = *a - *b, r = *c + *d, s = *c - *d;
        REAL_SET(lanes) t = *e + *f, u = *e - *f, v = *g + *h, w = *g - *h;
        REAL_SET(lanes) pr = p + r, qs = q + s, rp = p - r, sq = q - s;
        REAL_SET(lanes) tv = t + v, uw = u + w, vt = t - v, wu = u - w;
        *a = pr + tv;
        *b = qs + uw;
        *c = rp + vt;
        *d = sq + wu;
        *e = pr - tv;
        *f = qs - uw;
        *g = rp - vt;
        *h = sq - wu;
    }
}

/* A block that is shorter than a register, in the plain order. */
INLINE void REAL_SET(transform_short)(REAL *x, size_t size) {
    for (size_t half = 1; half < size; half *= 2) {
        for (size_t start = 0; start < size; start += 2 * half) {
            for (size_t j = start; j < start + half; j++) {
                REAL a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
        }
    }
}

/* All stages of one block of `size` entries: four in a register (sixteen lanes), then three per pass. */
static void REAL_SET(transform_block)(REAL *x, size_t size) {
    if (size < REAL_LANES) {
        REAL_SET(transform_short)(x, size);
        return;
    }
    for (size_t j = 0; j < size; j += REAL_LANES) {
        REAL_SET(lanes) *register_of = (void *)(x + j);
        *register_of = REAL_SET(inside_register)(*register_of);
    }
    for (size_t half = REAL_LANES; half < size;) {
        size_t rows = size / half < 8 ? size / half : 8;
        for (size_t start = 0; start < size; start += rows * half) {
            if (rows == 8) REAL_SET(join_eight)(x + start, half, half);
            else if (rows == 4) REAL_SET(join_four)(x + start, half, half);
            else REAL_SET(join_two)(x + start, half, half);
        }
        half *= rows;
    }
}

/* Scale `count` finished entries and add up their squares, whole blocks from number `block` on or less than one. */
INLINE void REAL_SET(finish)(REAL *x, size_t count, const ending *end, size_t block) {
    const REAL scale = (REAL)end->scale;
    if (end->mode == 1) {
        for (size_t i = 0; i < count; i++) x[i] *= scale;
    } else if (end->mode == 2) { /* not by way of a reciprocal, which would round twice */
        for (size_t i = 0; i < count; i++) x[i] /= scale;
    }
    if (end->mode != 0 && end->sums) REAL_SET(block_sums)(x, count, 1.0, 2, end->sums + block);
}

/* All stages inside each block of `size` <= QB_NORM_BLOCK entries. */
static void REAL_SET(early_stages)(REAL *x, size_t count, size_t size, const ending *end, int sparse) {
    for (size_t at = 0; at < count; at += size) {
        if (sparse && size == QB_NORM_BLOCK && REAL_SET(all_zero)(x + at, size)) continue;
        REAL_SET(transform_block)(x + at, size);
    }
    for (size_t at = 0; at < count; at += QB_NORM_BLOCK) {
        size_t left = count - at;
        REAL_SET(finish)(x + at, left < QB_NORM_BLOCK ? left : QB_NORM_BLOCK, end, at / QB_NORM_BLOCK);
    }
}

/* Join `rows` (2, 4 or 8) rows of `half` entries, for chunks `first .. last - 1` of QB_NORM_BLOCK columns, which stay in
 * the cache. */
static void REAL_SET(late_stages)(REAL *x, size_t half, size_t rows, size_t first, size_t last, const ending *end) {
    for (size_t chunk = first; chunk < last; chunk++) {
        size_t column = chunk * QB_NORM_BLOCK;
        size_t start = column / half * rows * half + column % half;
        if (rows == 8) REAL_SET(join_eight)(x + start, half, QB_NORM_BLOCK);
        else if (rows == 4) REAL_SET(join_four)(x + start, half, QB_NORM_BLOCK);
        else REAL_SET(join_two)(x + start, half, QB_NORM_BLOCK);
        for (size_t k = 0; k < rows; k++) {
            size_t row = start + k * half;
            REAL_SET(finish)(x + row, QB_NORM_BLOCK, end, row / QB_NORM_BLOCK);
        }
    }
}

/* Step 0 is all stages of a span of entries, a span for each part; every further one joins rows of spans. */
static void REAL_SET(transform)(void *values, size_t count, size_t block, int step, double *sums, int sparse,
                                size_t first, size_t last) {
    const ending more = {1.0, 0, 0}, end = last_stage(block, sums);
    size_t half;
    REAL *x = values;
    if (step > 0) {
        size_t rows = late_rows(block, step, &half);
        REAL_SET(late_stages)(x, half, rows, first, last, half * rows == block ? &end : &more);
        return;
    }
    const size_t early = block < QB_NORM_BLOCK ? block : QB_NORM_BLOCK, most = block < SPAN ? block : SPAN;
    for (size_t part = first; part < last; part++) {
        REAL *span = x + part * SPAN;
        size_t size = count - part * SPAN < SPAN ? count - part * SPAN : SPAN;
        REAL_SET(early_stages)(span, size, early, early == block ? &end : &more, sparse);
        for (half = early; half < most;) {
            size_t rows = most / half < 8 ? most / half : 8;
            REAL_SET(late_stages)(span, half, rows, 0, size / rows / QB_NORM_BLOCK, half * rows == block ? &end : &more);
            half *= rows;
        }
    }
}
