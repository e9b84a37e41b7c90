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

INLINE size_t REAL_SET(list)(const qb_undecided *undecided, size_t listed, i64 index, u16 word, REAL value) {
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

static size_t REAL_SET(sample_one_bit)(const qb_polynomial *plan, int order, const void *values, size_t count,
                                       const u16 *words, u8 *out, i64 start, const qb_undecided *undecided,
                                       size_t listed, double *total) {
    const REAL *x = values;
    REAL copy[PIECE];
    u16 floors[PIECE], last_words[PIECE];
    u64 codes[PIECE / 64], open[PIECE / 64];
    *total = 0.0;
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
        REAL_SET(floors)(piece, plan, size, floors);
        for (int i = size; i < rounded; i++) floors[i] = 0x8000;
        SET(compare)(here, floors, (u16)plan->width, rounded, codes, open);
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
                                      const qb_undecided *undecided, size_t listed) {
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

static size_t REAL_SET(sample_cells)(const qb_cells *plan, int order, const void *values, size_t count,
                                     const u16 *words, u8 *out, i64 start, const qb_undecided *undecided,
                                     size_t listed, double *total) {
    const REAL *x = values;
    const size_t bits = (size_t)plan->bits;
    REAL copy[PIECE];
    float part[PIECE];
    int32_t cell[PIECE], open[PIECE + 1];
    u8 codes[PIECE], packed[PIECE];
    *total = 0.0;
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

/* ---- rotation (transform.py) -------------------------------------------------------------------------------------------- */

INLINE void REAL_SET(flip_to_float)(const REAL *restrict x, size_t count, double factor, u32 signs, float *restrict out) {
    u32 bits[32];
    float scaled[32];
    for (size_t j = 0; j < count; j++) scaled[j] = (float)((double)x[j] * factor);
    memcpy(bits, scaled, 4 * count);
    for (size_t j = 0; j < count; j++) bits[j] ^= (signs >> j & 1) << 31;
    memcpy(out, bits, 4 * count);
}

INLINE void REAL_SET(flip_to_double)(const REAL *restrict x, size_t count, double factor, u32 signs,
                                     double *restrict out) {
    for (size_t j = 0; j < count; j++) {
        double scaled = (double)x[j] * factor;
        out[j] = double_of(bits_of(scaled) ^ (u64)(signs >> j & 1) << 63);
    }
}

static void REAL_SET(flip)(const void *values, size_t count, double factor, const u32 *signs, void *out, int out_wide) {
    const REAL *x = values;
    REAL some[32]; /* input and output may be the same numbers */
    for (size_t at = 0; at < count; at += 32) {
        size_t size = count - at < 32 ? count - at : 32;
        memcpy(some, x + at, size * sizeof(REAL));
        if (out_wide) {
            if (size == 32) REAL_SET(flip_to_double)(some, 32, factor, signs[at / 32], (double *)out + at);
            else REAL_SET(flip_to_double)(some, size, factor, signs[at / 32], (double *)out + at);
        } else {
            if (size == 32) REAL_SET(flip_to_float)(some, 32, factor, signs[at / 32], (float *)out + at);
            else REAL_SET(flip_to_float)(some, size, factor, signs[at / 32], (float *)out + at);
        }
    }
}

/* One stage, from neighbours to halves. */
static void REAL_SET(pair_pass)(const REAL *restrict x, REAL *restrict y, size_t count) {
    REAL *restrict second = y + count / 2;
    for (size_t i = 0; i < count / 2; i++) {
        REAL a = x[2 * i], b = x[2 * i + 1];
        y[i] = a + b;
        second[i] = a - b;
    }
}

/* Two stages, from four neighbours to quarters: loads and stores are the same loops whatever the stage, and after all
 * passes the entries are back in their order. */
static void REAL_SET(quad_pass)(const REAL *restrict x, REAL *restrict y, size_t count) {
    const size_t quarter = count / 4;
    REAL *restrict second = y + quarter, *restrict third = y + 2 * quarter, *restrict fourth = y + 3 * quarter;
    for (size_t i = 0; i < quarter; i++) {
        REAL a = x[4 * i] + x[4 * i + 1], b = x[4 * i] - x[4 * i + 1];
        REAL c = x[4 * i + 2] + x[4 * i + 3], d = x[4 * i + 2] - x[4 * i + 3];
        y[i] = a + c;
        second[i] = b + d;
        third[i] = a - c;
        fourth[i] = b - d;
    }
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

/* All stages of one block of `size` entries. */
static void REAL_SET(transform_block)(REAL *x, size_t size) {
    REAL other[QB_NORM_BLOCK], *from = x, *to = other;
    size_t done = 1;
    if (size > 1 && (size & 0x5555555555555555u) == 0) { /* an odd number of stages */
        REAL_SET(pair_pass)(from, to, size);
        done = 2;
        from = other;
        to = x;
    }
    while (done < size) {
        REAL_SET(quad_pass)(from, to, size);
        done *= 4;
        REAL *swap = from;
        from = to;
        to = swap;
    }
    if (from != x) memcpy(x, from, size * sizeof(REAL));
}

/* Scale `count` finished entries and add up their squares, whole blocks from number `block` on or less than one. */
INLINE void REAL_SET(finish)(REAL *x, size_t count, const qb_ending *ending, size_t block) {
    const REAL scale = (REAL)ending->scale;
    if (ending->mode == 1) {
        for (size_t i = 0; i < count; i++) x[i] *= scale;
    } else if (ending->mode == 2) { /* not by way of a reciprocal, which would round twice */
        for (size_t i = 0; i < count; i++) x[i] /= scale;
    }
    if (ending->mode != 0 && ending->sums) REAL_SET(block_sums)(x, count, 1.0, 2, ending->sums + block);
}

static void REAL_SET(early_stages)(void *values, size_t count, size_t size, const qb_ending *ending, int sparse) {
    REAL *x = values;
    for (size_t at = 0; at < count; at += size) {
        if (sparse && size == QB_NORM_BLOCK && REAL_SET(all_zero)(x + at, size)) continue;
        REAL_SET(transform_block)(x + at, size);
    }
    for (size_t at = 0; at < count; at += QB_NORM_BLOCK) {
        size_t left = count - at;
        REAL_SET(finish)(x + at, left < QB_NORM_BLOCK ? left : QB_NORM_BLOCK, ending, at / QB_NORM_BLOCK);
    }
}

/* The later stages combine whole rows, so that memory is read once per two, four or eight of them. */
INLINE void REAL_SET(join_two)(REAL *restrict a, REAL *restrict b) {
    for (int j = 0; j < QB_NORM_BLOCK; j++) {
        REAL p = a[j], q = b[j];
        a[j] = p + q;
        b[j] = p - q;
    }
}

INLINE void REAL_SET(join_four)(REAL *restrict a, REAL *restrict b, REAL *restrict c, REAL *restrict d) {
    for (int j = 0; j < QB_NORM_BLOCK; j++) {
        REAL p = a[j] + b[j], q = a[j] - b[j], r = c[j] + d[j], s = c[j] - d[j];
        a[j] = p + r;
        b[j] = q + s;
        c[j] = p - r;
        d[j] = q - s;
    }
}

INLINE void REAL_SET(join_eight)(REAL *restrict a, REAL *restrict b, REAL *restrict c, REAL *restrict d,
                                 REAL *restrict e, REAL *restrict f, REAL *restrict g, REAL *restrict h) {
    for (int j = 0; j < QB_NORM_BLOCK; j++) {
        REAL p = a[j] + b[j], q = a[j] - b[j], r = c[j] + d[j], s = c[j] - d[j];
        REAL t = e[j] + f[j], u = e[j] - f[j], v = g[j] + h[j], w = g[j] - h[j];
        REAL pr = p + r, qs = q + s, rp = p - r, sq = q - s;
        REAL tv = t + v, uw = u + w, vt = t - v, wu = u - w;
        a[j] = pr + tv;
        b[j] = qs + uw;
        c[j] = rp + vt;
        d[j] = sq + wu;
        e[j] = pr - tv;
        f[j] = qs - uw;
        g[j] = rp - vt;
        h[j] = sq - wu;
    }
}

static void REAL_SET(late_stages)(void *values, size_t half, int rows, size_t first, size_t last,
                                  const qb_ending *ending) {
    REAL *x = values;
    for (size_t chunk = first; chunk < last; chunk++) {
        size_t column = chunk * QB_NORM_BLOCK;
        size_t start = column / half * (size_t)rows * half + column % half;
        REAL *row[8];
        for (int k = 0; k < rows; k++) row[k] = x + start + (size_t)k * half;
        if (rows == 8) REAL_SET(join_eight)(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7]);
        else if (rows == 4) REAL_SET(join_four)(row[0], row[1], row[2], row[3]);
        else REAL_SET(join_two)(row[0], row[1]);
        for (int k = 0; k < rows; k++) {
            REAL_SET(finish)(row[k], QB_NORM_BLOCK, ending, (start + (size_t)k * half) / QB_NORM_BLOCK);
        }
    }
}
