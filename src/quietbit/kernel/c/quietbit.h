/* quietbit: the operations of a kernel in portable C11, without a library.
 *
 * Every function reads and writes the caller's buffers alone: nothing is allocated, nothing is kept between calls but
 * the choice of an instruction set, and all of them may run on several threads at once. Results are those of the
 * reference kernel (reference.py), bit for bit, on every target.
 *
 * Build with -ffp-contract=off: results depend on every product and every sum being rounded on its own. A library that
 * was built otherwise fails `qb_self_test`, which a caller runs once before anything else.
 *
 *     cc -std=c11 -O3 -ffp-contract=off -fno-trapping-math -shared -fPIC quietbit.c -o libquietbit.so
 */
#ifndef QUIETBIT_H
#define QUIETBIT_H

#include <stddef.h>
#include <stdint.h>

/* Here, because both sources and whoever links them must be built so: linking with fast mathematics changes how
 * processors round. */
#if defined(__FAST_MATH__) || defined(_M_FP_FAST)
#error "fast mathematics changes results: build without -ffast-math, -Ofast or /fp:fast"
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "a NaN would pass for a number: build without -ffinite-math-only"
#endif

#if defined(QB_API) /* chosen by whoever includes this: `static` where a single file is compiled */
#elif defined(QB_STATIC)
#define QB_API
#elif defined(_WIN32)
#define QB_API __declspec(dllexport)
#else
#define QB_API __attribute__((visibility("default")))
#endif

#define QB_VERSION 3 /* of this interface: raised when a structure or a signature changes */

enum {
    QB_TILE = 128,        /* words of a tile of the expansion (expand.py) */
    QB_PRIMARY_TILE = 4096, /* coordinates whose primary words are made together (rng.py, Primary) */
    QB_NORM_BLOCK = 4096, /* values of one partial sum of a norm (norm.py) */
    QB_GROUP = 15,        /* payloads counted at once: what four bit planes hold */
    QB_MAX_BITS = 8,      /* of a code that is sampled */
    QB_MAX_COEFFICIENTS = 18
};

/* One bit, decided in float32 by a polynomial (tables.py, "One bit"); coefficients from the highest power down. */
typedef struct {
    double gain, shift;
    float low;
    float coefficient[QB_MAX_COEFFICIENTS];
    int32_t count;
    int32_t width;
} qb_polynomial;

/* One bit or more, decided by straight lines on cells (tables.py, CellTable). */
typedef struct {
    double gain, low, high; /* t = gain * value, clamped */
    double inverse, offset; /* position = t * inverse + offset: the cell, and the place inside it */
    const float *start, *step;                 /* (cells, 2^bits - 1): the lines */
    const uint8_t *lowest, *highest, *code;    /* (cells, 256), by the upper byte of the word */
    float half;                                /* distance from a line at which a word decides */
    int32_t cells, bits;
} qb_cells;

/* The exact law of a code (sampler.py): pairs of doubles, one row of 2^bits symbols per segment. */
typedef struct {
    double gain[4], clamp[2];
    const double *knots, *knots_tail;
    const double *base, *base_tail, *slope, *slope_tail;
    int32_t levels, bits;
} qb_law;

/* The random words of one release (rng.py). Exactly one source: given words of all coordinates; for simulations two
 * keys of Philox; else a fresh key of ChaCha. */
typedef struct {
    const uint16_t *given;
    const uint64_t *given_ties;
    uint32_t key[8];
    uint64_t seeded[2], seeded_ties[2];
    int32_t is_seeded;
} qb_random;

/* An update: consecutive arrays, of which each begins at a coordinate and at a block of the norm. */
enum { QB_FLOAT = 0, QB_DOUBLE = 1, QB_HALF = 2, QB_BFLOAT = 3 };
typedef struct {
    const void *values;
    int64_t start, size, block;
    int32_t kind;
} qb_part;
typedef struct {
    const qb_part *parts;
    int64_t count, size; /* of parts, of coordinates */
} qb_update;

QB_API int qb_version(void);
QB_API int qb_self_test(void);                 /* 0, or the number of the check that failed */
QB_API int qb_instruction_set(int at_most);    /* choose the best set up to a number, 0 for no limit; return it */

/* ---- random words -------------------------------------------------------------------------------------------- */
QB_API void qb_stream_words(const uint32_t *key, uint64_t stream, uint64_t start, size_t count, uint64_t *out);
QB_API void qb_philox(const uint64_t *key, uint64_t start, size_t count, uint64_t *out);
QB_API void qb_seed_key(const uint32_t *entropy, size_t count, uint64_t *key);

/* ---- norm, clip factor, gain ------------------------------------------------------------------------------------ */
/* Blocks `first .. last - 1` of an update, in the order of its parts. */
QB_API void qb_block_sums(const qb_update *update, double scale, int order, double *out, int64_t first, int64_t last);
QB_API double qb_exact_sum(const double *terms, size_t count);
QB_API double qb_clip_factor(double norm, double radius, int room);
QB_API void qb_gain(double factor, double scale, double gain[4]);

/* ---- sampling and packing ---------------------------------------------------------------------------------------- */
/* `factor` times an update of `size` values, rotated in blocks of a power of two, at most QB_NORM_BLOCK. With
 * `last_signs`, one more block covers the end, where another may be incomplete. */
typedef struct {
    double factor;
    const uint32_t *signs, *last_signs;
    int64_t size, block;
} qb_rotation;
/* How an update is sampled: by one of both plans, or, where both are null, every coordinate by the law, which also
 * settles what a plan leaves open; rotated first unless that is null. With an order, 1 or 2, private copies are sampled,
 * and measured. */
typedef struct {
    const qb_polynomial *polynomial;
    const qb_cells *cells;
    const qb_law *law;
    const qb_rotation *rotation;
    const qb_random *random;
    int32_t bits, order;
} qb_sampling;
/* Pack the codes of coordinates `first .. last - 1` into the body `out`, and return the sum of |value|^order, with a
 * relative error below 2^-44. `first` is a multiple of QB_PRIMARY_TILE; an overlapping last block must lie inside one
 * call. */
QB_API double qb_sample(const qb_sampling *how, const qb_update *update, uint8_t *out, int64_t first, int64_t last);
/* Codes of one byte, and ceil(count bits / 8) bytes whose padding bits are zero; 1 <= bits <= 8. */
QB_API void qb_pack(const uint8_t *codes, size_t count, int bits, uint8_t *out);
QB_API void qb_unpack(const uint8_t *data, size_t count, int bits, uint8_t *codes);
/* Add table[code] of every payload, of codes of 1 to 16 bits, to coordinates `first .. last - 1` of the total, int32 or
 * (wide) int64; `first` is a multiple of 8. Of one bit there may be at most QB_GROUP payloads. */
QB_API void qb_accumulate(const uint8_t *const *payloads, int payload_count, int bits, const int64_t *table,
                          void *total, int wide, size_t first, size_t last);

/* ---- rotation ----------------------------------------------------------------------------------------------------- */
/* factor * update, a product of doubles rounded once, with the sign changed where a bit of `signs` is set: coordinates
 * `first .. last - 1`, where `first` is a multiple of 32, of the whole vector `out`. It may be the update itself. */
QB_API void qb_flip(const qb_update *update, double factor, const uint32_t *signs, void *out, int wide, int64_t first,
                    int64_t last);
/* The transform of every block of a power of two entries, in steps 0, 1, ...; each has parts that may run in any order,
 * and no part is left where a step has none. With `sums`, for a single block, the sums of squares of every QB_NORM_BLOCK
 * entries are written to it; `sparse` skips zeros, of public numbers. */
/* `wide` says what `x` points to: 0 for float, 1 for double. */
QB_API size_t qb_transform_parts(size_t count, size_t block, int step);
QB_API void qb_transform(void *x, int wide, size_t count, size_t block, int step, double *sums, int sparse,
                         size_t first, size_t last);

/* ---- expansion of the vector mechanism ------------------------------------------------------------------------------ */
/* `table` is quantile.bin, the polynomials of the normal quantile (normals.py). */
QB_API void qb_expand_words(const uint32_t *state, size_t tiles, uint64_t *out);
QB_API void qb_expand_normals(const uint32_t *state, const double *table, size_t tiles, double *out);
/* The first of `count` candidate seeds that is accepted, or -1; `direction` is padded with zeros to whole tiles. */
QB_API int64_t qb_first_accepted(const uint32_t *seeds, const uint64_t *words, size_t count, const double *direction,
                                 size_t tiles, const double *edges, size_t edge_count, const uint64_t *limits,
                                 const double *table);
QB_API void qb_add_seeds(const uint32_t *nonces, const uint32_t *seeds, size_t payloads, const int64_t *starts,
                         size_t rows, double scale, const double *table, int64_t *total);
/* The nearest multiples of a grid to values with noise, and whether doubles make them certain (rounded.py). */
QB_API void qb_noise_steps(const double *values, const uint64_t *words, size_t count, double unit, double grid,
                           int normal, const double *table, double *steps, uint8_t *certain);

#endif
