/* Tables 1 to 3 of k=32 proofs of space on a GPU: one source, compiled as OpenCL C and as CUDA.

   A bucket holds the 2^bits values x that share their upper bits. Of a pair of buckets every match is wanted (table 2),
   of two neighbouring pairs every match of those (table 3). Plain chained hash tables do it: random access is what a
   GPU hides best. Work-item and thread are the same thing here, and every kernel is one-dimensional.

   Values of a bucket lie as the keystream comes: value i = word * blocks + block belongs to x = first + 16 block + word,
   so that neighbouring threads write neighbouring words. */

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
typedef unsigned int u32;
typedef unsigned long long u64;
#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__
#define GLOBAL
#define CONSTANT static __device__ const
#define ITEM (blockIdx.x * blockDim.x + threadIdx.x)
#define ROTATE(v, n) __funnelshift_l((v), (v), (n))
#define HIGH_PRODUCT(a, b) __umulhi((a), (b))
#define EXCHANGE(p, v) atomicExch((p), (v))
#define COUNT_UP(p) atomicAdd((p), 1u)
#else
typedef uint u32;
typedef ulong u64;
#define KERNEL __kernel void
#define DEVICE static inline
#define GLOBAL __global
#define CONSTANT __constant
#define ITEM ((u32)get_global_id(0))
#define ROTATE(v, n) rotate((u32)(v), (u32)(n))
#define HIGH_PRODUCT(a, b) mul_hi((u32)(a), (u32)(b))
#define EXCHANGE(p, v) atomic_xchg((volatile __global u32 *)(p), (u32)(v))
#define COUNT_UP(p) atomic_inc((volatile __global u32 *)(p))
#endif

#define NOBODY 0xFFFFFFFFu
#define GROUP_SIZE 15113u

DEVICE u32 swap_bytes(u32 w) { return (ROTATE(w, 8) & 0x00FF00FFu) | (ROTATE(w, 24) & 0xFF00FF00u); }

/* ---- ChaCha8: table 1 is its keystream -------------------------------------------------------------------------- */

#define QUARTER(a, b, c, d)                                                                                              \
    a += b; d = ROTATE(d ^ a, 16); c += d; b = ROTATE(b ^ c, 12);                                                        \
    a += b; d = ROTATE(d ^ a, 8); c += d; b = ROTATE(b ^ c, 7);

DEVICE void keystream_block(GLOBAL const u32 *key, u32 counter, u32 *out) {
    u32 x[16];
    x[0] = 0x61707865u; x[1] = 0x3320646Eu; x[2] = 0x79622D32u; x[3] = 0x6B206574u;
    for (int i = 0; i < 8; i++) x[4 + i] = key[i];
    x[12] = counter; x[13] = 0; x[14] = 0; x[15] = 0;
    for (int round = 0; round < 4; round++) {
        QUARTER(x[0], x[4], x[8], x[12]) QUARTER(x[1], x[5], x[9], x[13])
        QUARTER(x[2], x[6], x[10], x[14]) QUARTER(x[3], x[7], x[11], x[15])
        QUARTER(x[0], x[5], x[10], x[15]) QUARTER(x[1], x[6], x[11], x[12])
        QUARTER(x[2], x[7], x[8], x[13]) QUARTER(x[3], x[4], x[9], x[14])
    }
    out[0] = swap_bytes(x[0] + 0x61707865u); out[1] = swap_bytes(x[1] + 0x3320646Eu);
    out[2] = swap_bytes(x[2] + 0x79622D32u); out[3] = swap_bytes(x[3] + 0x6B206574u);
    for (int i = 0; i < 8; i++) out[4 + i] = swap_bytes(x[4 + i] + key[i]);
    out[12] = swap_bytes(x[12] + counter);
    for (int i = 13; i < 16; i++) out[i] = swap_bytes(x[i]);
}

/* ---- the matching rule ------------------------------------------------------------------------------------------- */

/* y = word * 64 + top: y div 15113 and y mod 15113 in 32-bit arithmetic. 2328086553 = floor(2^45 / 15113), with which
   the quotient comes out at most one too small. */
DEVICE void split(u32 word, u32 top, u32 *group, u32 *remainder) {
    u32 quotient = HIGH_PRODUCT(word, 2328086553u) >> 7;
    u32 rest = ((word << 6) | top) - quotient * GROUP_SIZE;
    if (rest >= GROUP_SIZE) { rest -= GROUP_SIZE; quotient++; }
    *group = quotient;
    *remainder = rest;
}

/* parity: the lowest bit of the left group; the right one is in the next group. */
DEVICE int remainders_match(u32 parity, u32 left, u32 right) {
    u32 left_row = left / 127u, right_row = right / 127u;
    int m = (int)right_row - (int)left_row;
    if (m < 0) m += 119;
    if (m >= 64) return 0;
    int shift = (int)(right - right_row * 127u) - (int)(left - left_row * 127u);
    if (shift < 0) shift += 127;
    u32 root = 2u * (u32)m + parity;
    return (u32)shift == (root * root) % 127u;
}

DEVICE int fit(u32 b_left, u32 group_b, u32 remainder_a, u32 remainder_b) {
    if (b_left) return remainders_match(group_b & 1u, remainder_b, remainder_a);
    return remainders_match((group_b - 1u) & 1u, remainder_a, remainder_b);
}

/* ---- table 2: matches of a pair of buckets ----------------------------------------------------------------------- */

/* One item a block of the first bucket of a pair. uppers: [pairs][2]; words, heads, links: [pairs][2^bits]; heads are
   NOBODY before. */
KERNEL hang_values(GLOBAL const u32 *key, GLOBAL const u32 *uppers, u32 bits, GLOBAL u32 *words, GLOBAL u32 *heads,
                   GLOBAL u32 *links) {
    u32 blocks = 1u << (bits - 4u), pair = ITEM >> (bits - 4u), block = ITEM & (blocks - 1u);
    u32 first = uppers[2u * pair] << bits, mask = (1u << bits) - 1u, values[16], group, remainder;
    u64 base = (u64)pair << bits;
    keystream_block(key, (first >> 4u) + block, values);
    for (u32 word = 0; word < 16u; word++) {
        u32 i = word * blocks + block;
        split(values[word], first >> 26u, &group, &remainder);
        words[base + i] = values[word];
        links[base + i] = EXCHANGE(heads + base + (group & mask), i);
    }
}

/* One item a block of the second bucket. counts: [pairs], 0 before; found: [pairs][room][2], the x left and right of
   each match; a count above room tells that some are missing. A bucket joined with itself would give each match
   twice. */
KERNEL match_values(GLOBAL const u32 *key, GLOBAL const u32 *uppers, u32 bits, GLOBAL const u32 *words,
                    GLOBAL const u32 *heads, GLOBAL const u32 *links, u32 room, GLOBAL u32 *counts, GLOBAL u32 *found) {
    u32 blocks = 1u << (bits - 4u), pair = ITEM >> (bits - 4u), block = ITEM & (blocks - 1u);
    u32 first_a = uppers[2u * pair] << bits, first_b = uppers[2u * pair + 1u] << bits;
    u32 mask = (1u << bits) - 1u, sides = first_a == first_b ? 1u : 2u, values[16], group, remainder;
    u64 base = (u64)pair << bits;
    keystream_block(key, (first_b >> 4u) + block, values);
    for (u32 word = 0; word < 16u; word++) {
        split(values[word], first_b >> 26u, &group, &remainder);
        for (u32 b_left = 0; b_left < sides; b_left++) {
            u32 wanted = b_left ? group + 1u : group - 1u, steps = 0;
            for (u32 i = heads[base + (wanted & mask)]; i <= mask && steps <= mask; i = links[base + i], steps++) {
                u32 other_group, other;
                split(words[base + i], first_a >> 26u, &other_group, &other);
                if (other_group != wanted || !fit(b_left, group, other, remainder)) continue;
                u32 n = COUNT_UP(counts + pair);
                if (n >= room) continue;
                u32 xa = first_a + (i & (blocks - 1u)) * 16u + (i >> (bits - 4u)), xb = first_b + block * 16u + word;
                u64 at = 2u * ((u64)pair * room + n);
                found[at] = b_left ? xb : xa;
                found[at + 1u] = b_left ? xa : xb;
            }
        }
    }
}

/* ---- BLAKE3 of one block ----------------------------------------------------------------------------------------- */

CONSTANT u32 START[8] = {0x6A09E667u, 0xBB67AE85u, 0x3C6EF372u, 0xA54FF53Au, 0x510E527Fu, 0x9B05688Cu, 0x1F83D9ABu,
                         0x5BE0CD19u};

#define MIX(a, b, c, d, x, y)                                                                                            \
    a += b + x; d = ROTATE(d ^ a, 16); c += d; b = ROTATE(b ^ c, 20);                                                    \
    a += b + y; d = ROTATE(d ^ a, 24); c += d; b = ROTATE(b ^ c, 25);

/* y of what a left entry (y, with `words` / 2 words of metadata) and a right one become: the upper 38 bits of the hash
   of y and both metadata as one string of bits. */
DEVICE u64 next_y(u64 y, const u32 *metadata, u32 words) {
    u32 m[16], v[16], carry = (u32)(y & 63u) << 26;
    m[0] = swap_bytes((u32)(y >> 6));
    for (u32 i = 0; i < 15u; i++) {
        u32 word = i < words ? metadata[i] : 0u;
        m[1u + i] = swap_bytes(carry | (word >> 6));
        carry = i < words ? word << 26 : 0u;
    }
    for (int i = 0; i < 8; i++) v[i] = START[i];
    for (int i = 0; i < 4; i++) v[8 + i] = START[i];
    v[12] = 0; v[13] = 0; v[14] = (38u + 32u * words + 7u) / 8u; v[15] = 11u;
    for (int round = 0; round < 7; round++) {
        MIX(v[0], v[4], v[8], v[12], m[0], m[1]) MIX(v[1], v[5], v[9], v[13], m[2], m[3])
        MIX(v[2], v[6], v[10], v[14], m[4], m[5]) MIX(v[3], v[7], v[11], v[15], m[6], m[7])
        MIX(v[0], v[5], v[10], v[15], m[8], m[9]) MIX(v[1], v[6], v[11], v[12], m[10], m[11])
        MIX(v[2], v[7], v[8], v[13], m[12], m[13]) MIX(v[3], v[4], v[9], v[14], m[14], m[15])
        u32 p0 = m[2], p1 = m[6], p2 = m[3], p3 = m[10], p4 = m[7], p5 = m[0], p6 = m[4], p7 = m[13];
        u32 p8 = m[1], p9 = m[11], p10 = m[12], p11 = m[5], p12 = m[9], p13 = m[14], p14 = m[15], p15 = m[8];
        m[0] = p0; m[1] = p1; m[2] = p2; m[3] = p3; m[4] = p4; m[5] = p5; m[6] = p6; m[7] = p7;
        m[8] = p8; m[9] = p9; m[10] = p10; m[11] = p11; m[12] = p12; m[13] = p13; m[14] = p14; m[15] = p15;
    }
    return ((u64)swap_bytes(v[0] ^ v[8]) << 6) | (swap_bytes(v[1] ^ v[9]) >> 26);
}

/* ---- table 3: matches of two neighbouring pairs ------------------------------------------------------------------ */

/* One item a place of `found`. Computes y [pairs][room] of each match; those of even pairs are hung up in
   heads [pairs / 2][2^head_bits], NOBODY before, and links [pairs][room]. */
KERNEL hang_matches(GLOBAL const u32 *key, u32 pairs, u32 room, GLOBAL const u32 *counts, GLOBAL const u32 *found,
                    GLOBAL u64 *y, u32 head_bits, GLOBAL u32 *heads, GLOBAL u32 *links) {
    u32 pair = ITEM / room, i = ITEM % room;
    if (pair >= pairs || i >= counts[pair]) return;
    u64 at = (u64)pair * room + i;
    u32 both[2] = {found[2u * at], found[2u * at + 1u]}, values[16], word = 0;
    keystream_block(key, both[0] >> 4, values);
    for (u32 w = 0; w < 16u; w++) word = w == (both[0] & 15u) ? values[w] : word;
    u64 found_y = next_y(((u64)word << 6) | (both[0] >> 26), both, 2u);
    y[at] = found_y;
    if (pair & 1u) return;
    u32 slot = (u32)(found_y / GROUP_SIZE) & ((1u << head_bits) - 1u);
    links[at] = EXCHANGE(heads + ((u64)(pair >> 1) << head_bits) + slot, i);
}

/* One item a place of the odd pairs. quad_counts: [pairs / 2], 0 before; quad_y, quad_xs: [pairs / 2][quad_room] of y and
   of four x in proof order. */
KERNEL match_matches(u32 pairs, u32 room, GLOBAL const u32 *counts, GLOBAL const u32 *found, GLOBAL const u64 *y,
                     u32 head_bits, GLOBAL const u32 *heads, GLOBAL const u32 *links, u32 quad_room,
                     GLOBAL u32 *quad_counts, GLOBAL u64 *quad_y, GLOBAL u32 *quad_xs) {
    u32 quad = ITEM / room, pair = 2u * quad + 1u;
    if (pair >= pairs || ITEM % room >= counts[pair]) return;
    u64 base = (u64)(pair - 1u) * room, b = (u64)pair * room + ITEM % room;
    u32 group = (u32)(y[b] / GROUP_SIZE), remainder = (u32)(y[b] % GROUP_SIZE), mask = (1u << head_bits) - 1u;
    for (u32 b_left = 0; b_left < 2u; b_left++) {
        u32 wanted = b_left ? group + 1u : group - 1u, steps = 0;
        for (u32 i = heads[((u64)quad << head_bits) + (wanted & mask)]; i < room && steps < room;
             i = links[base + i], steps++) {
            u64 a = base + i, left = b_left ? b : a, right = b_left ? a : b;
            if ((u32)(y[a] / GROUP_SIZE) != wanted || !fit(b_left, group, (u32)(y[a] % GROUP_SIZE), remainder)) continue;
            u32 n = COUNT_UP(quad_counts + quad);
            if (n >= quad_room) continue;
            u32 xs[4] = {found[2u * left], found[2u * left + 1u], found[2u * right], found[2u * right + 1u]};
            u64 at = (u64)quad * quad_room + n;
            quad_y[at] = next_y(y[left], xs, 4u);
            for (u32 w = 0; w < 4u; w++) quad_xs[4u * at + w] = xs[w];
        }
    }
}
