/* The yardstick for our keystream: ChaCha8 in C with the compiler's vector types, eight blocks side by side.
   Built and called by tests/recompute_limits.py where a C compiler is at hand. */
#include <stdint.h>

typedef uint32_t lanes __attribute__((vector_size(32)));
typedef lanes unaligned __attribute__((aligned(4)));

#define ROTATE(v, n) ((v) << (n) | (v) >> (32 - (n)))
#define STEP(a, b, d, n) a += b; d ^= a; d = ROTATE(d, n);
#define QUARTER(a, b, c, d) STEP(a, b, d, 16) STEP(c, d, b, 12) STEP(a, b, d, 8) STEP(c, d, b, 7)

/* Write `blocks` (a multiple of 8) consecutive blocks from number `first` to out[16][blocks], big-endian words. */
void fill_keystream(const uint32_t *key, uint32_t first, uint32_t blocks, uint32_t *out) {
    static const uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    for (uint32_t block = 0; block < blocks; block += 8) {
        lanes x[16], start[16];
        for (int w = 0; w < 16; w++) start[w] = (lanes){0} + (w < 4 ? constants[w] : w < 12 ? key[w - 4] : 0);
        start[12] = (lanes){0, 1, 2, 3, 4, 5, 6, 7} + (first + block);
        for (int w = 0; w < 16; w++) x[w] = start[w];
        for (int round = 0; round < 4; round++) {
            QUARTER(x[0], x[4], x[8], x[12]) QUARTER(x[1], x[5], x[9], x[13])
            QUARTER(x[2], x[6], x[10], x[14]) QUARTER(x[3], x[7], x[11], x[15])
            QUARTER(x[0], x[5], x[10], x[15]) QUARTER(x[1], x[6], x[11], x[12])
            QUARTER(x[2], x[7], x[8], x[13]) QUARTER(x[3], x[4], x[9], x[14])
        }
        for (int w = 0; w < 16; w++) {
            lanes sum = x[w] + start[w];
            *(unaligned *)(out + w * blocks + block) = (ROTATE(sum, 8) & 0x00ff00ff) | (ROTATE(sum, 24) & 0xff00ff00);
        }
    }
}
