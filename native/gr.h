/* The interface between chiapos and its decompressor, version 1: what the extension passes and expects. Only what crosses
 * the border is declared. */
#ifndef GPUPOOL_GR_H
#define GPUPOOL_GR_H

#include <stddef.h>
#include <stdint.h>

#define GR_EXPORTED __attribute__((visibility("default")))

enum { GR_VERSION = 1, GR_XS = 64, GR_PAIRS = 32, GR_LEVELS = 9 };

typedef enum {
    GR_FAILED = 0,
    GR_OK = 1,
    GR_NO_PROOF = 3,
    GR_WRONG_VERSION = 4,
    GR_INVALID_ARGUMENT = 6
} gr_result;

typedef struct gr_context gr_context;

typedef struct {
    uint32_t version, threads, first_cpu;
    int32_t no_affinity;
    uint32_t gpu_request, gpu_index;
    uint32_t reserved[16];
} gr_config;

typedef struct {
    uint64_t numbers[GR_XS]; /* in: 32 line points; out: 64 x */
    uint32_t level;
    const uint8_t *plot_id;
} gr_proof;

typedef struct {
    const uint8_t *plot_id, *challenge;
    uint32_t level;
    struct {
        uint64_t high, low;
    } line_points[2]; /* the second is set from level 6 on */
    uint64_t larger, smaller; /* out */
} gr_quality;

typedef struct {
    uint32_t entry_bits, stub_bits;
    size_t park_bytes;
    double ans_r;
} gr_info;

GR_EXPORTED gr_result grCreateContext(gr_context **context, gr_config *config, size_t size);
GR_EXPORTED void grDestroyContext(gr_context *context);
GR_EXPORTED gr_result grPreallocateForCompressionLevel(gr_context *context, uint32_t k, uint32_t level);
GR_EXPORTED gr_result grFetchProofForChallenge(gr_context *context, gr_proof *proof);
GR_EXPORTED gr_result grGetFetchQualitiesXPair(gr_context *context, gr_quality *quality);
GR_EXPORTED int32_t grHasGpuDecompressor(gr_context *context);
GR_EXPORTED gr_result grGetCompressionInfo(gr_info *info, size_t size, uint32_t k, uint32_t level);

#endif
