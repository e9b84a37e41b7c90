/* Sums over a cohort of codes drawn for outer products: the loop of outer.py, whose numpy version is its reference. */
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
/* Multiplying 64-bit numbers side by side is worth an instruction set of its own; gcc chooses it at load. */
#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define CLONES
#endif

enum { PIECE = 512 };

/* One class of one model: add what the codes of all clients stand for to out[feature]. `table` has `cells` + 1 rows of
 * `width` thresholds, `whole` what each code stands for. */
EXPORT CLONES void sum_codes(const float *left, size_t clients, const float *right, size_t features, uint64_t counter,
                             float low, float inverse, const float *table, size_t cells, size_t width,
                             const int32_t *whole, size_t symbols, int64_t *out) {
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    const float last = (float)cells - 1e-3f;
    float uniform[PIECE], part[PIECE];
    int32_t place[PIECE], code[PIECE];
    for (size_t i = 0; i < clients; i++) {
        for (size_t start = 0; start < features; start += PIECE) {
            size_t size = features - start < PIECE ? features - start : PIECE;
            const float *row = right + i * features + start;
            uint64_t first = counter + (uint64_t)(i * features + start) * golden;
            for (size_t f = 0; f < size; f++) { /* SplitMix64 */
                uint64_t z = first + (uint64_t)f * golden;
                z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
                z = (z ^ z >> 27) * 0x94D049BB133111EBu;
                uniform[f] = (float)(int32_t)(z >> 40) * 0x1p-24f;
            }
            for (size_t f = 0; f < size; f++) {
                float x = (left[i] * row[f] - low) * inverse;
                x = x > 0.0f ? x : 0.0f; /* a NaN is 0 */
                x = x < last ? x : last;
                int32_t cell = (int32_t)x;
                part[f] = x - (float)cell;
                place[f] = cell * (int32_t)width;
                code[f] = 0;
            }
            for (size_t step = symbols / 2; step > 0; step /= 2) { /* a binary search without branches */
                for (size_t f = 0; f < size; f++) {
                    const float *here = table + place[f] + code[f] + step - 1;
                    float line = here[0] + part[f] * (here[width] - here[0]);
                    code[f] += uniform[f] >= line ? (int32_t)step : 0;
                }
            }
            for (size_t f = 0; f < size; f++) out[start + f] += whole[code[f]];
        }
    }
}
