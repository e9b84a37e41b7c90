/* quietbit: portable C11 behind quietbit.h.
 *
 * Layout   this file holds what is scalar, and the choice of an instruction set; passes.h holds the loops over
 *          coordinates and is included once per instruction set, and real_passes.h those over float and double.
 * Rounding every double is rounded after every operation, in the order of the Python sources named beside a function;
 *          nothing is fused and no function of a mathematics library is called. Only the decisions in float32 may be
 *          fused: their margins allow either (docs/theory/numerics.md), and what they leave open goes to the exact law.
 */
#include "quietbit.h"

#if defined(__x86_64__) && !defined(QB_PORTABLE)
#define QB_DISPATCH 1
#include <cpuid.h>
#include <immintrin.h>
#endif

#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "doubles must be rounded after every operation: 32-bit x86 needs -msse2 -mfpmath=sse"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "payloads are little-endian, and so must the machine be"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

/* Without a C library (WebAssembly) the compiler still calls these two. */
#if defined(__wasm__) && !defined(QB_HOSTED)
static void *copy_bytes(void *to, const void *from, size_t count) { return __builtin_memcpy(to, from, count); }
static void *fill_bytes(void *to, int value, size_t count) { return __builtin_memset(to, value, count); }
#define memcpy copy_bytes
#define memset fill_bytes
#else
#include <string.h>
#endif

#if defined(QB_SMALL) /* one copy of every function: half of the bytes, and some of the speed */
#define INLINE static
#define FULL(condition) 0 /* what a client never does: updates of many arrays, seeds, rotating while it samples */
#else
#define FULL(condition) (condition)
#define INLINE static inline __attribute__((always_inline))
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

enum {
    PIECE = 2048,    /* coordinates of a pass: inputs, words and results fit the first-level cache */
    LANES = 256,     /* of a norm's block */
    PARTIAL_SUMS = 64, /* of an inner product (normals.py, SUMS) */
    PLANE = 64,      /* words of a bit plane counted in one pass */
    SPAN = 1 << 18   /* entries transformed before the next are touched */
};

/* Bit j of a word: a mask, because SSE2 has no shifts by another number in every lane. */
static const u32 single_bits[32] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31,
};

INLINE u64 bits_of(double value) {
    u64 bits;
    memcpy(&bits, &value, 8);
    return bits;
}

INLINE double double_of(u64 bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

/* ---- ChaCha (rng.py, Cipher) ----------------------------------------------------------------------------------- */

INLINE u32 rotate_word(u32 word, int by) { return word << by | word >> (32 - by); }

/* Written for words and for vectors of words alike: ROTATE is what differs. */
#define QUARTER_ROUND(a, b, c, d, ROTATE) \
    a += b; d = ROTATE(d ^ a, 16); \
    c += d; b = ROTATE(b ^ c, 12); \
    a += b; d = ROTATE(d ^ a, 8); \
    c += d; b = ROTATE(b ^ c, 7);

#define DOUBLE_ROUND(x, ROTATE) \
    QUARTER_ROUND(x[0], x[4], x[8], x[12], ROTATE) \
    QUARTER_ROUND(x[1], x[5], x[9], x[13], ROTATE) \
    QUARTER_ROUND(x[2], x[6], x[10], x[14], ROTATE) \
    QUARTER_ROUND(x[3], x[7], x[11], x[15], ROTATE) \
    QUARTER_ROUND(x[0], x[5], x[10], x[15], ROTATE) \
    QUARTER_ROUND(x[1], x[6], x[11], x[12], ROTATE) \
    QUARTER_ROUND(x[2], x[7], x[8], x[13], ROTATE) \
    QUARTER_ROUND(x[3], x[4], x[9], x[14], ROTATE)

enum { RELEASE_ROUNDS = 12, EXPANSION_ROUNDS = 20, TIES = 1 };

static void chacha_block(const u32 state[16], u64 block, int rounds, u32 out[16]) {
    u32 start[16], x[16];
    u64 number = (state[12] | (u64)state[13] << 32) + block;
    memcpy(start, state, sizeof start);
    start[12] = (u32)number;
    start[13] = (u32)(number >> 32);
    memcpy(x, start, sizeof x);
    for (int round = 0; round < rounds; round += 2) {
        DOUBLE_ROUND(x, rotate_word)
    }
    for (int i = 0; i < 16; i++) out[i] = x[i] + start[i];
}

/* The state of a stream with a key of 256 bits, whose nonce is the stream's number. */
static void stream_state(const u32 key[8], u64 stream, u32 state[16]) {
    static const u32 constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}; /* "expand 32-byte k" */
    memcpy(state, constants, 16);
    memcpy(state + 4, key, 32);
    state[12] = 0;
    state[13] = 0;
    state[14] = (u32)stream;
    state[15] = (u32)(stream >> 32);
}

/* ---- numpy's Philox4x64 with ten rounds, and the key that its SeedSequence makes: the public signs --------------- */

static u64 multiply_high(u64 a, u64 b, u64 *low) {
#if defined(__SIZEOF_INT128__) && !defined(__wasm__)
    unsigned __int128 product = (unsigned __int128)a * b;
    *low = (u64)product;
    return (u64)(product >> 64);
#else
    u64 a_low = (u32)a, a_high = a >> 32, b_low = (u32)b, b_high = b >> 32;
    u64 first = a_high * b_low + (a_low * b_low >> 32);
    __asm__("" : "+r"(first)); /* clang would make of all this one product of 128 bits, a call of its runtime on wasm */
    u64 second = a_low * b_high + (u32)first;
    *low = a * b;
    return a_high * b_high + (first >> 32) + (second >> 32);
#endif
}

/* Words start .. start + count - 1: four per step of the counter, which is 1 for the first. */
void qb_philox(const u64 *key, u64 start, size_t count, u64 *out) {
    size_t done = 0;
    while (done < count) {
        u64 place = start + done, counter[4] = {place / 4 + 1, 0, 0, 0};
        u64 key0 = key[0], key1 = key[1];
        for (int round = 0; round < 10; round++) {
            u64 low0, low1;
            u64 high0 = multiply_high(0xD2E7470EE14C6C93u, counter[0], &low0);
            u64 high1 = multiply_high(0xCA5A826395121157u, counter[2], &low1);
            counter[0] = high1 ^ counter[1] ^ key0;
            counter[1] = low1;
            counter[2] = high0 ^ counter[3] ^ key1;
            counter[3] = low0;
            key0 += 0x9E3779B97F4A7C15u;
            key1 += 0xBB67AE8584CAA73Bu;
        }
        for (u64 j = place % 4; j < 4 && done < count; j++) out[done++] = counter[j];
    }
}

/* The tie words of listed coordinates: all of one stream, of which few are needed (rng.py). */
static void tie_words(const qb_random *random, const i64 *index, size_t count, u64 *out) {
    u32 state[16], block[16];
    u64 made = UINT64_MAX;
    stream_state(random->key, TIES, state);
    for (size_t i = 0; i < count; i++) {
        u64 at = (u64)index[i];
        if (FULL(random->given != 0)) {
            out[i] = random->given_ties[at];
        } else if (FULL(random->is_seeded)) {
            u64 word = (at ^ random->seeded_ties[0]) * 0x9E3779B97F4A7C15u + random->seeded_ties[1];
            word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
            word = (word ^ word >> 27) * 0x94D049BB133111EBu;
            out[i] = word ^ word >> 31;
        } else {
            if (at / 8 != made) {
                made = at / 8;
                chacha_block(state, made, RELEASE_ROUNDS, block);
            }
            out[i] = block[2 * (at % 8)] | (u64)block[2 * (at % 8) + 1] << 32;
        }
    }
}

INLINE u32 hash_word(u32 value, u32 *constant) {
    value ^= *constant;
    *constant *= 0x931e8875u;
    value *= *constant;
    return value ^ value >> 16;
}

INLINE u32 mix_words(u32 left, u32 right) {
    u32 mixed = left * 0xca01f9ddu - right * 0x4973f715u;
    return mixed ^ mixed >> 16;
}

/* SeedSequence(seed, spawn_key).generate_state(2, uint64). `entropy` is the seed in 32-bit words, lowest first, padded
 * with zeros to at least four, and then the words of the spawn key, each number without leading zero words. */
void qb_seed_key(const u32 *entropy, size_t count, u64 *key) {
    u32 pool[4], state[4], constant = 0x43b0d7e5u, output = 0x8b51f9ddu;
    for (size_t i = 0; i < 4; i++) pool[i] = hash_word(i < count ? entropy[i] : 0, &constant);
    for (int from = 0; from < 4; from++) {
        for (int to = 0; to < 4; to++) {
            if (from != to) pool[to] = mix_words(pool[to], hash_word(pool[from], &constant));
        }
    }
    for (size_t from = 4; from < count; from++) {
        for (int to = 0; to < 4; to++) pool[to] = mix_words(pool[to], hash_word(entropy[from], &constant));
    }
    for (int i = 0; i < 4; i++) {
        u32 value = pool[i] ^ output;
        output *= 0x58f38dedu;
        value *= output;
        state[i] = value ^ value >> 16;
    }
    key[0] = state[0] | (u64)state[1] << 32;
    key[1] = state[2] | (u64)state[3] << 32;
}

/* ---- exact sums and products (sampler.py) -------------------------------------------------------------------------- */

typedef struct {
    double high, low;
} pair;

INLINE pair two_sum(double a, double b) {
    double total = a + b;
    double shadow = total - a;
    return (pair){total, (a - (total - shadow)) + (b - shadow)};
}

INLINE pair two_product(double a, double b) {
    const double splitter = 134217729.0; /* 2^27 + 1 */
    double product = a * b;
    double scaled_a = splitter * a, scaled_b = splitter * b;
    double a_high = scaled_a - (scaled_a - a), b_high = scaled_b - (scaled_b - b);
    double a_low = a - a_high, b_low = b - b_high;
    return (pair){product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)};
}

/* e^r for |r| < 0.35: the Taylor polynomial of degree 13. */
INLINE double exponential(double r) {
    double q = ((((1.0 / 6227020800.0 * r + 1.0 / 479001600.0) * r + 1.0 / 39916800.0) * r + 1.0 / 3628800.0) * r +
                1.0 / 362880.0) * r + 1.0 / 40320.0;
    q = (((((q * r + 1.0 / 5040.0) * r + 1.0 / 720.0) * r + 1.0 / 120.0) * r + 1.0 / 24.0) * r + 1.0 / 6.0) * r +
        1.0 / 2.0;
    return 1.0 + (r + (r * r) * q);
}

/* The nearest whole number, ties to even, of a number below 2^52. */
INLINE double nearest(double value) {
    double size = value < 0.0 ? -value : value;
    double whole = (size + 0x1p52) - 0x1p52;
    return value < 0.0 ? -whole : whole;
}

/* log(x) for 2^-63 <= x <= 1 within 2^-46: enough for noise whose doubt allows for 2^-44 (rounded.py, Reach). */
INLINE double logarithm(double x) {
    u64 bits = bits_of(x);
    i64 exponent = (i64)(bits >> 52) - 1023;
    double mantissa = double_of((bits & 0xFFFFFFFFFFFFFu) | 1023ull << 52);
    if (mantissa > 1.4142135623730951) {
        mantissa *= 0.5;
        exponent += 1;
    }
    double s = (mantissa - 1.0) / (mantissa + 1.0), square = s * s; /* |s| < 0.172 */
    double q = 1.0 / 19;
    q = q * square + 1.0 / 17;
    q = q * square + 1.0 / 15;
    q = q * square + 1.0 / 13;
    q = q * square + 1.0 / 11;
    q = q * square + 1.0 / 9;
    q = q * square + 1.0 / 7;
    q = q * square + 1.0 / 5;
    q = q * square + 1.0 / 3;
    q = q * square + 1.0;
    return (double)exponent * 0.6931471805599453 + 2.0 * s * q;
}

/* ---- norm, clip factor and gain (norm.py, sampler.py), in whole numbers where Python uses them ---------------------- */

/* The sum of numbers that are not negative, rounded once, as math.fsum (Shewchuk 1997); a term that is infinite or NaN
 * makes the sum so. */
double qb_exact_sum(const double *terms, size_t count) {
    double part[64], plain = 0.0; /* partial sums do not overlap, so that 2^-1074 to 2^1024 takes at most 40 of them */
    int parts = 0;
    for (size_t i = 0; i < count; i++) plain += terms[i];
    if (!(plain <= 0x1.fffffffffffffp1023)) return plain;
    for (size_t i = 0; i < count; i++) {
        double value = terms[i];
        int left = 0;
        for (int j = 0; j < parts; j++) {
            pair sum = two_sum(value, part[j]);
            if (sum.low != 0.0) part[left++] = sum.low;
            value = sum.high;
        }
        part[left] = value;
        parts = left + 1;
    }
    double high = 0.0, low = 0.0;
    while (parts > 0) {
        double before = high, next = part[--parts];
        high = before + next;
        low = next - (high - before);
        if (low != 0.0) break;
    }
    /* Half-way cases are decided by the sign of the next part. */
    if (parts > 0 && ((low < 0.0 && part[parts - 1] < 0.0) || (low > 0.0 && part[parts - 1] > 0.0))) {
        double twice = low * 2.0, moved = high + twice;
        if (twice == moved - high) high = moved;
    }
    return high;
}

/* A positive normal double as mantissa * 2^exponent, the mantissa a whole number of 53 bits. */
INLINE u64 mantissa_of(double value, int *exponent) {
    u64 bits = bits_of(value);
    *exponent = (int)(bits >> 52 & 2047) - 1075;
    return (bits & 0xFFFFFFFFFFFFFu) | 1ull << 52;
}

INLINE double power_of_two(int exponent) { /* -1022 .. 1023 */
    return double_of((u64)(exponent + 1023) << 52);
}

/* The largest double, at most 1, that is not above radius (1 - 2^-room) (1 - 2^-48) / norm; `room` is 1 to 63, 0 for no
 * such factor. Norm (0, or normal) and radius (normal) are not negative. */
double qb_clip_factor(double norm, double radius, int room) {
    if (norm == 0.0) return 1.0;
    int radius_exponent, norm_exponent;
    u64 top[3] = {mantissa_of(radius, &radius_exponent), 0, 0};
    u64 divisor = mantissa_of(norm, &norm_exponent);
    const int shifts[2] = {room, 48};
    for (int k = 0; k < 2; k++) { /* times 2^s - 1, in three limbs */
        int s = shifts[k];
        if (s == 0) continue;
        u64 lifted[3] = {top[0] << s, top[1] << s | top[0] >> (64 - s), top[2] << s | top[1] >> (64 - s)};
        u64 borrow = 0;
        for (int i = 0; i < 3; i++) {
            u64 difference = lifted[i] - top[i];
            u64 borrowed = (lifted[i] < top[i]) | (difference < borrow);
            top[i] = difference - borrow;
            borrow = borrowed;
        }
    }
    /* Long division, bit by bit: the first 53 bits of the quotient, cut off. */
    u64 rest = 0, quotient = 0;
    int place = 191, digits = 0;
    while (digits < 53) {
        u64 next = place >= 0 ? top[place / 64] >> place % 64 & 1 : 0;
        rest = rest << 1 | next;
        u64 bit = rest >= divisor;
        if (bit) rest -= divisor;
        quotient = quotient << 1 | bit;
        if (digits > 0 || bit) digits++;
        place--;
    }
    int exponent = radius_exponent - norm_exponent - room - 48 + place + 1;
    if (exponent >= -52) return 1.0;
    if (exponent < -1074) { /* subnormal: cut off further */
        int lost = -1074 - exponent;
        quotient = lost < 64 ? quotient >> lost : 0;
        exponent = -1074;
    }
    if (exponent >= -1022) return (double)quotient * power_of_two(exponent);
    return (double)quotient * power_of_two(-1022) * power_of_two(exponent + 1022);
}

/* factor * scale as 2^e (high + low), high in [1, 2]; the factor is 0 or normal, the scale normal. */
void qb_gain(double factor, double scale, double gain[4]) {
    if (factor == 0.0) {
        gain[0] = 0.0;
        gain[1] = 0.0;
        gain[2] = 1.0;
        gain[3] = 0.0;
        return;
    }
    int factor_exponent, scale_exponent;
    double a = (double)mantissa_of(factor, &factor_exponent) * 0x1p-52;
    double b = (double)mantissa_of(scale, &scale_exponent) * 0x1p-52;
    pair product = two_product(a, b);
    int exponent = factor_exponent + scale_exponent + 104;
    if (product.high > 2.0 || (product.high == 2.0 && product.low >= 0.0)) {
        product.high *= 0.5;
        product.low *= 0.5;
        exponent++;
    }
    int first = exponent < -1000 ? -1000 : exponent > 1000 ? 1000 : exponent;
    gain[0] = power_of_two(first);
    gain[1] = power_of_two(exponent - first);
    gain[2] = product.high;
    gain[3] = product.low;
}

/* Coordinates that float32 left undecided; there is room for every coordinate of a pass beyond those listed. */
typedef struct {
    i64 *index;
    u16 *word;
    double *value;
} undecided_list;

/* How a transform ends: mode 0, more stages follow; 1, multiply by scale; 2, divide by it. Then the sums of squares of
 * blocks are written to `sums` if it is not null. */
typedef struct {
    double scale, *sums;
    int mode;
} ending;

/* Multiplying by 1 / sqrt(block) is exact where the block is an even power of two. */
INLINE ending last_stage(size_t block, double *sums) {
    int stages = 0;
    while (block >> stages > 1) stages++;
    double root = (double)((size_t)1 << stages / 2);
    return stages % 2 ? (ending){root * 1.4142135623730951, sums, 2} : (ending){1.0 / root, sums, 1};
}

/* How many rows of `half` entries the late stages of a step join, and that half; 0 where the transform is complete. */
INLINE size_t late_rows(size_t block, int step, size_t *half) {
    *half = SPAN;
    for (; step > 1 && *half < block; step--) *half *= block / *half < 8 ? block / *half : 8;
    size_t left = block / *half;
    return left < 2 ? 0 : left < 8 ? left : 8;
}

size_t qb_transform_parts(size_t count, size_t block, int step) {
    size_t half;
    if (step == 0) return (count + SPAN - 1) / SPAN;
    size_t rows = late_rows(block, step, &half);
    return rows == 0 ? 0 : count / rows / QB_NORM_BLOCK;
}

/* ---- exchanging lanes of a vector: entry i becomes the one of lane i ^ 1, i ^ 2, i ^ 4, i ^ 8 ---------------------------- */

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(v, indices, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define SHUFFLE(v, indices, ...) __builtin_shuffle(v, (indices){__VA_ARGS__})
#endif
#define SWAP_2_1(v, t) SHUFFLE(v, t, 1, 0)
#define SWAP_4_1(v, t) SHUFFLE(v, t, 1, 0, 3, 2)
#define SWAP_4_2(v, t) SHUFFLE(v, t, 2, 3, 0, 1)
#define SWAP_8_1(v, t) SHUFFLE(v, t, 1, 0, 3, 2, 5, 4, 7, 6)
#define SWAP_8_2(v, t) SHUFFLE(v, t, 2, 3, 0, 1, 6, 7, 4, 5)
#define SWAP_8_4(v, t) SHUFFLE(v, t, 4, 5, 6, 7, 0, 1, 2, 3)
#define SWAP_16_1(v, t) SHUFFLE(v, t, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define SWAP_16_2(v, t) SHUFFLE(v, t, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define SWAP_16_4(v, t) SHUFFLE(v, t, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define SWAP_16_8(v, t) SHUFFLE(v, t, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)

/* Two vectors as one of pairs or of pairs of pairs, within every four lanes: of the first two lanes, or of the last. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE_TWO(a, b, indices, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE_TWO(a, b, indices, ...) __builtin_shuffle(a, b, (indices){__VA_ARGS__})
#endif
#define LOW_4(a, b, t) SHUFFLE_TWO(a, b, t, 0, 4, 1, 5)
#define HIGH_4(a, b, t) SHUFFLE_TWO(a, b, t, 2, 6, 3, 7)
#define LOW_PAIRS_4(a, b, t) SHUFFLE_TWO(a, b, t, 0, 1, 4, 5)
#define HIGH_PAIRS_4(a, b, t) SHUFFLE_TWO(a, b, t, 2, 3, 6, 7)
#define LOW_8(a, b, t) SHUFFLE_TWO(a, b, t, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH_8(a, b, t) SHUFFLE_TWO(a, b, t, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW_PAIRS_8(a, b, t) SHUFFLE_TWO(a, b, t, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH_PAIRS_8(a, b, t) SHUFFLE_TWO(a, b, t, 2, 3, 10, 11, 6, 7, 14, 15)
#define LOW_16(a, b, t) SHUFFLE_TWO(a, b, t, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define HIGH_16(a, b, t) SHUFFLE_TWO(a, b, t, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define LOW_PAIRS_16(a, b, t) SHUFFLE_TWO(a, b, t, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_PAIRS_16(a, b, t) SHUFFLE_TWO(a, b, t, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)

/* ---- an update as one vector (norm.py, Flat) ---------------------------------------------------------------------- */

/* Half precision, or the upper half of a float's bits, as a float; exact. */
INLINE float of_half(u16 half, int kind) {
    const u32 exponent = 0x7C00u << 13;
    u32 bits = (u32)(half & 0x7FFF) << 13, rebased = bits + ((127u - 15) << 23), sign = (u32)(half & 0x8000) << 16;
    float value;
    if (kind == QB_BFLOAT) {
        bits = (u32)half << 16;
        memcpy(&value, &bits, 4);
        return value;
    }
    if ((bits & exponent) == exponent) rebased += (128u - 16) << 23; /* infinite, or a NaN */
    if ((bits & exponent) == 0) { /* subnormal: 2^-14 (1 + f) - 2^-14 */
        rebased += 1u << 23;
        memcpy(&value, &rebased, 4);
        value -= 0x1p-14f;
        memcpy(&rebased, &value, 4);
    }
    rebased |= sign;
    memcpy(&value, &rebased, 4);
    return value;
}

/* The last part that begins at or before a place, of coordinates or (by_block) of blocks. */
static const qb_part *part_at(const qb_update *update, i64 place, int by_block) {
    i64 low = 0, high = update->count;
    while (high - low > 1) {
        i64 middle = low + (high - low) / 2;
        const qb_part *part = update->parts + middle;
        if ((by_block ? part->block : part->start) <= place) low = middle;
        else high = middle;
    }
    return update->parts + low;
}

static void copy_values(const qb_part *part, i64 from, size_t count, void *to, size_t done, int wide) {
    const float *floats = (const float *)part->values + from;
    const double *doubles = (const double *)part->values + from;
    const u16 *halves = (const u16 *)part->values + from;
    float *narrow_out = (float *)to + done;
    double *wide_out = (double *)to + done;
    if (part->kind == QB_DOUBLE) {
        memcpy(wide_out, doubles, 8 * count);
    } else if (part->kind == QB_FLOAT && !wide) {
        memcpy(narrow_out, floats, 4 * count);
    } else if (part->kind == QB_FLOAT) {
        for (size_t i = 0; i < count; i++) wide_out[i] = floats[i];
    } else if (wide) {
        for (size_t i = 0; i < count; i++) wide_out[i] = of_half(halves[i], part->kind);
    } else {
        for (size_t i = 0; i < count; i++) narrow_out[i] = of_half(halves[i], part->kind);
    }
}

/* `count` values from a coordinate on, at most as many as `room` holds doubles: in place where they are one array of
 * float or double, else copied. */
static const void *values_at(const qb_update *update, i64 first, size_t count, void *room, int *wide) {
    const qb_part *part = part_at(update, first, 0);
    i64 last = first + (i64)count, offset = first - part->start;
    if (!FULL(last > part->start + part->size || part->kind > QB_DOUBLE)) {
        *wide = FULL(part->kind == QB_DOUBLE);
        return (const u8 *)part->values + offset * (*wide ? 8 : 4);
    }
    *wide = 0;
    for (const qb_part *other = part; other < update->parts + update->count && other->start < last; other++) {
        if (other->kind == QB_DOUBLE && other->size > 0) *wide = 1;
    }
    for (i64 at = first; at < last; part++) {
        i64 end = part->start + part->size < last ? part->start + part->size : last;
        copy_values(part, at - part->start, (size_t)(end - at), room, (size_t)(at - first), *wide);
        at = end;
    }
    return room;
}

/* ---- the passes, once per instruction set ----------------------------------------------------------------------------- */

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define SET(name) JOIN(name, INSTRUCTION_SET)

#if defined(QB_DISPATCH)

#if defined(__clang__)
#define TARGET_BEGIN(features) DO_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TARGET_END _Pragma("clang attribute pop")
#define FULL_WIDTH ""
#else
#define TARGET_BEGIN(features) _Pragma("GCC push_options") DO_PRAGMA(GCC target(features))
#define TARGET_END _Pragma("GCC pop_options")
#define FULL_WIDTH ",prefer-vector-width=512" /* gcc would use half of a register */
#endif
#define DO_PRAGMA(text) DO_PRAGMA_(text)
#define DO_PRAGMA_(text) _Pragma(#text)

#define INSTRUCTION_SET _sse2
#define VECTOR_LANES 4
#include "passes.h"
#undef INSTRUCTION_SET
#undef VECTOR_LANES

TARGET_BEGIN("avx2,fma,bmi,bmi2,lzcnt,popcnt")
#define INSTRUCTION_SET _avx2
#define VECTOR_LANES 8
#define HAS_FMA 1
#include "passes.h"
#undef INSTRUCTION_SET
#undef VECTOR_LANES
TARGET_END

TARGET_BEGIN("avx2,fma,bmi,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl" FULL_WIDTH)
#define INSTRUCTION_SET _avx512
#define VECTOR_LANES 16
#include "passes.h"
#undef INSTRUCTION_SET
#undef VECTOR_LANES
#undef HAS_FMA
TARGET_END

enum { SET_UNKNOWN = 0, SET_SSE2 = 1, SET_AVX2 = 2, SET_AVX512 = 3 };

/* cpuid itself: __builtin_cpu_supports needs a part of the compiler's runtime that not all of them link. */
static int best_set(void) {
    u32 a, b, c, d, features, low = 0, high = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return SET_SSE2; /* osxsave */
    u32 has_fma = c >> 12 & 1;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6 || !has_fma || !__get_cpuid_count(7, 0, &a, &features, &c, &d)) return SET_SSE2;
    const u32 avx2 = 1u << 3 | 1u << 5 | 1u << 8;                                /* bmi, avx2, bmi2 */
    const u32 avx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;     /* f, dq, cd, bw, vl */
    if ((features & avx2) != avx2) return SET_SSE2;
    return (low & 0xE6) == 0xE6 && (features & avx512) == avx512 ? SET_AVX512 : SET_AVX2;
}

static int chosen_set = SET_UNKNOWN;

int qb_instruction_set(int at_most) {
    int best = best_set();
    if (at_most > 0 && best > at_most) best = at_most;
    __atomic_store_n(&chosen_set, best, __ATOMIC_RELAXED);
    return best;
}

INLINE int current_set(void) {
    int set = __atomic_load_n(&chosen_set, __ATOMIC_RELAXED);
    return set == SET_UNKNOWN ? qb_instruction_set(0) : set;
}

#define CALL(name, ...) \
    switch (current_set()) { \
    case SET_AVX512: return name##_avx512(__VA_ARGS__); \
    case SET_AVX2: return name##_avx2(__VA_ARGS__); \
    default: return name##_sse2(__VA_ARGS__); \
    }

#else /* one instruction set: NEON, WebAssembly, or whatever the compiler was told */

#define INSTRUCTION_SET _only
#define VECTOR_LANES 4
#include "passes.h"

int qb_instruction_set(int at_most) {
    (void)at_most;
    return 1;
}

#define CALL(name, ...) return name##_only(__VA_ARGS__)

#endif

void qb_stream_words(const u32 *key, u64 stream, u64 start, size_t count, u64 *out) {
    CALL(stream_words, key, stream, start, count, out);
}

void qb_block_sums(const qb_update *update, double scale, int order, double *out, i64 first, i64 last) {
    CALL(norm_sums, update, scale, order, out, first, last);
}

double qb_sample(const qb_sampling *how, const qb_update *update, u8 *out, i64 first, i64 last) {
    CALL(sample_range, how, update, out, first, last);
}

static void resolve(const qb_law *law, const undecided_list *undecided, const u64 *ties, size_t count, u8 *out) {
    CALL(resolve, law, undecided, ties, count, out);
}

void qb_pack(const u8 *codes, size_t count, int bits, u8 *out) { CALL(pack_all, codes, count, bits, out); }

void qb_unpack(const u8 *data, size_t count, int bits, u8 *codes) { CALL(unpack_all, data, count, bits, codes); }

void qb_accumulate(const u8 *const *payloads, int payload_count, int bits, const i64 *table, void *total, int wide,
                   size_t first, size_t last) {
    CALL(accumulate, payloads, payload_count, bits, table, total, wide, first, last);
}

void qb_flip(const qb_update *update, double factor, const u32 *signs, void *out, int wide, i64 first, i64 last) {
    CALL(flip_range, update, factor, signs, out, wide, first, last);
}

void qb_transform(void *x, int wide, size_t count, size_t block, int step, double *sums, int sparse, size_t first,
                  size_t last) {
    if (wide) {
        CALL(transform_f64, x, count, block, step, sums, sparse, first, last);
    }
    CALL(transform_f32, x, count, block, step, sums, sparse, first, last);
}

void qb_expand_words(const u32 *state, size_t tiles, u64 *out) { CALL(expand_words, state, tiles, out); }

void qb_expand_normals(const u32 *state, const double *table, size_t tiles, double *out) {
    CALL(expand_normals, state, table, tiles, out);
}

i64 qb_first_accepted(const u32 *seeds, const u64 *words, size_t count, const double *direction, size_t tiles,
                      const double *edges, size_t edge_count, const u64 *limits, const double *table) {
    CALL(first_accepted, seeds, words, count, direction, tiles, edges, edge_count, limits, table);
}

void qb_add_seeds(const u32 *nonces, const u32 *seeds, size_t payloads, const i64 *starts, size_t rows, double scale,
                  const double *table, i64 *total) {
    CALL(add_seeds, nonces, seeds, payloads, starts, rows, scale, table, total);
}

void qb_noise_steps(const double *values, const u64 *words, size_t count, double unit, double grid, int normal,
                    const double *table, double *steps, u8 *certain) {
    CALL(noise_steps, values, words, count, unit, grid, normal, table, steps, certain);
}

int qb_version(void) { return QB_VERSION; }

/* ---- self-test ------------------------------------------------------------------------------------------------------- */

/* The threshold of the law below at 0.1 is 65536 times its probability: a whole part, and 48 bits of the rest. */
#define SELF_TEST_WORD 29648
#define SELF_TEST_TIE 37967627100160u

/* Whether this build rounds as it must: 0, or the number of the check that failed. The numbers are volatile, so that
 * the compiler cannot do at build time what the processor would do otherwise. */
int qb_self_test(void) {
    volatile double tenth = 0.1, third = 1.0 / 3.0;
    /* 1: a fused product minus a rounded one would be what rounding lost, not zero. */
    double rounded = tenth * third;
    volatile double kept = rounded;
    if (tenth * third - kept != 0.0) return 1;
    /* 2: the exact product, whose last step a fused build computes otherwise. */
    pair product = two_product(tenth, third);
    if (bits_of(product.high) != 0x3fa1111111111111u || bits_of(product.low) != 0x3c21111111111110u) return 2;
    /* 3: sums are not reordered. */
    volatile double large = 0x1p53, one = 1.0;
    if ((large + one) - large != 0.0 || two_sum(large, one).low != 1.0) return 3;
    /* 4: the exponential in its last bit. */
    if (bits_of(exponential(tenth)) != 0x3ff1aec7b35a00d4u) return 4;
    /* 5: float is rounded to float. */
    volatile float wide = 16777216.0f;
    if ((wide + 1.0f) - wide != 0.0f) return 5;
    /* 6: ChaCha20 with a key of zeros (RFC 8439, A.1). */
    u32 state[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, block[16];
    chacha_block(state, 0, EXPANSION_ROUNDS, block);
    if (block[0] != 0xade0b876u || block[15] != 0x8665eeb2u) return 6;
    /* 7: the exact law of the passes that are really called, on both sides of its threshold. */
    const double knots[2] = {-0.5, 0.5}, zeros[2] = {0.0, 0.0}, base[2] = {0.0, 0.1}, slope[2] = {0.0, 0.7};
    const qb_law law = {{1.0, 1.0, 1.3, 0.0}, {-0.5, 0.5}, knots, zeros, base, zeros, slope, zeros, 2, 1};
    int64_t index[2] = {0, 1};
    u16 words[2] = {SELF_TEST_WORD, SELF_TEST_WORD};
    double values[2] = {tenth, tenth};
    const undecided_list undecided = {index, words, values};
    const u64 ties[2] = {SELF_TEST_TIE - 1, SELF_TEST_TIE};
    u8 codes = 0;
    resolve(&law, &undecided, ties, 2, &codes);
    if (codes != 2) return 7;
    /* 8: their sums of squares. */
    double squares[2 * LANES] = {0.0}, sum;
    squares[0] = third;
    squares[LANES] = tenth;
    const qb_part part = {squares, 0, 2 * LANES, 0, QB_DOUBLE};
    const qb_update update = {&part, 1, 2 * LANES};
    qb_block_sums(&update, 1.0, 2, &sum, 0, 1);
    volatile double first = third * third, second = tenth * tenth;
    if (sum != first + second) return 8;
    /* 9: no comparison with a NaN holds, and none of its sums is a number. */
    volatile double nan = double_of(0x7ff8000000000000u);
    if (nan <= one || nan >= one || nan == nan) return 9;
    squares[1] = nan;
    qb_block_sums(&update, 1.0, 2, &sum, 0, 1);
    if ((bits_of(qb_exact_sum(&sum, 1)) & 0x7ff0000000000000u) != 0x7ff0000000000000u) return 9;
    return 0;
}
