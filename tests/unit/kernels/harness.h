/* harness: tensors with guards, backends in several settings, launches with exactly the scratch
 * that the table names, and comparisons with a derived bound.
 *
 * The same tests run on several backends. Each is one file that is linked beside the harness:
 * on_cpu.c, on_cudasim.c (the CUDA plug-in on an emulated device), on_cuda.c (on a GPU).
 *
 * Used by: the kernel tests.
 */
#ifndef HD_TESTS_KERNELS_HARNESS_H
#define HD_TESTS_KERNELS_HARNESS_H

#include "kernels/kernels.h"
#include "tests/program/test.h"
#include "tests/reference/reference.h"

/* One backend setting: every kernel must be right in each. The first three are what a user gets:
 * they differ in threads (of the CPU) or in the order of threads (emulated) alone, and give the
 * same bits. */
struct setting {
    int threads;
    bool force_plain, deterministic;
    enum hd_gemm_by gemm_by;
    enum { ISA_BEST, ISA_AVX2, ISA_AVX512 } isa; /* a narrower set, if the machine has it */
    uint64_t order;                              /* of emulated threads: 0, 1, or random from it */
    bool is_narrow; /* emulated: blocks have no more than 99 KB of shared memory, as on an L4 */
};

/* ---- What a backend's file defines ---- */

extern const struct setting settings[];
extern const int setting_count, gemm_setting_count; /* the last ones differ in products only */
extern const int attention_setting_count; /* all, or fewer: if it knows no such products */
/* Whether a setting runs this case of a long test: orders of emulated threads take turns, so that
 * every case runs in one and every order has many. What else settings choose between, every case
 * runs by; under sanitizers these take turns, too. */
bool setting_is_in_turn(int setting, int number);
/* Whether setting number s multiplies factors of this encoding by code of its own: the last
 * settings of the CPU differ from the first in products of bf16 alone. */
bool setting_takes(int s, enum hd_dtype factors);
extern const enum hd_dtype float_types[]; /* that the backend computes with */
extern const int float_type_count;

/* The table; where there is none, skips the test that runs and says why. */
const struct hd_backend_table *on_backend(void);
/* Whether setting number s takes case number `number` of many: all of them on the CPU (a third
 * under sanitizers); a device takes one in `of` by setting, so that its settings share the cases
 * (an emulated one is slow). */
bool on_takes(int s, int64_t number, int64_t of);
/* Apply what a setting means beside the options: for the device before it is opened, and then. */
void on_device(const struct setting *setting);
void on_open(struct hd_backend *backend, const struct setting *setting);
/* Memory at a bound of 64 bytes that the host and the device reach. */
void *on_memory(size_t size_bytes);
void on_memory_free(void *memory);

/* ---- Backends ---- */

struct device {
    struct hd_backend *backend;
    struct hd_stream *stream;
    struct hd_traits traits;
};
struct device device_open(const struct setting *setting);
void device_close(struct device *device);

/* Launches with scratch of exactly hd_kernel_scratch_bytes, poisoned with NaN and guarded, whose
 * pointer is put into `args` (a struct of this kernel), and waits for the end. Fails the test when
 * the guard is hurt. Operands lie in tensors, but for step blocks, which are lent to the device for
 * the launch. */
enum hd_status device_try(struct device *device, enum hd_kernel kernel, void *args);
void device_launch(struct device *device, enum hd_kernel kernel, void *args); /* must succeed */

/* A tensor of the kernel's encoding beside its exact values in double. Elements lie between guards
 * of 64 bytes. */
struct tensor {
    void *data;
    double *values; /* [count]: what was put in */
    int64_t count;
    enum hd_dtype dtype;
    char *memory;
};

/* Every tensor of a test lives until tensors_free, which checks all guards. */
struct tensor *tensor_new(int64_t count, enum hd_dtype dtype); /* poisoned with NaN */
struct tensor *tensor_random(int64_t count, enum hd_dtype dtype, double spread, uint64_t key);
struct tensor *tensor_int32(int64_t count, int64_t first, int64_t step); /* first + i * step */
struct tensor *tensor_random_int32(int64_t count, int64_t low, int64_t high, uint64_t key);
struct tensor *tensor_copy(const struct tensor *tensor); /* data and values */
/* A copy of these bytes, zeros for NULL, where host and device reach it; until tensors_free. */
void *reachable(const void *bytes, size_t size_bytes);
void tensors_free(void);

double tensor_get(const struct tensor *tensor, int64_t i);       /* what is in it now */
void tensor_put(struct tensor *tensor, int64_t i, double value); /* rounds; updates values */
void tensor_poison(struct tensor *tensor);                       /* NaN everywhere */
/* A tensor [rows, columns] with row distance ld; what lies between rows stays NaN. */
struct tensor *tensor_rows(const double *dense, int64_t rows, int64_t columns, int64_t ld,
                           enum hd_dtype dtype);
/* Reads values of the tensor that is the context, a hd_quant_read_fn (base/quant.h). */
enum hd_status tensor_read(void *context, int64_t first, int64_t count, float *ret_values);
/* Settings of a step with AdamW, every one of which matters. */
struct hd_step_state adam_block(void);
double *doubles(int64_t count); /* until tensors_free */

/* Returns numbers computed in double for one setting, which are kept for the others, until
 * kept_free: zeros when they are new, under a key that tells their operands from all others, such
 * as a hash. */
double *kept_doubles(uint64_t key, int64_t count, bool *ret_is_new);
void kept_free(void);

/* A product [M, N] by ref_gemm, and that of the absolute values, which bounds its rounding; kept.
 */
struct product_in_double {
    double *sum, *size;
};
struct product_in_double product_in_double(const struct tensor *a, const struct tensor *b,
                                           const struct tensor *bias, int64_t M, int64_t N,
                                           int64_t K, bool trans_a, bool trans_b);

/* |got - want| <= u |want| + fp32_units * 2^-24 * magnitude for every element, u = 2^-8 for bf16,
 * 2^-11 for f16 (one rounding to nearest) and 0 for fp32, magnitude = the largest |want| (at least
 * 1e-30). Infinities must be equal. */
void assert_close(const char *what, const struct tensor *got, const double *want,
                  double fp32_units);
/* Compares likewise where a result may be what is left of terms that cancel: magnitude is at least
 * `terms`, the size of the largest term. */
void assert_close_terms(const char *what, const struct tensor *got, const double *want,
                        double fp32_units, double terms);
void assert_close_at(const char *what, int64_t i, double got, double want, double bound);

/* Checks `sums`, made beside R rows of N values as they are stored, and the gradient of a bias that
 * bias_backward makes of them: against the rows in double. The tensor has room for sums_count. */
int64_t sums_count(const struct device *device, int64_t R, int64_t N);
void assert_row_sums(struct device *device, const struct tensor *rows, const struct tensor *sums,
                     int64_t R, int64_t N);

/* The rule for low precision: against `want`, the error of `got` is at most twice that of `naive`,
 * an implementation that rounds after each operation; the root of the mean square and the largest.
 * naive is rounded to got's encoding first. Infinities must be equal. */
void assert_close_as_naive(const char *what, const struct tensor *got, const double *want,
                           const double *naive);

/* The contract of dropout once more (ops.h), word by word from base/random. */
struct dropping {
    uint64_t key;
    int64_t step;
    double p;
};
/* 0, or 1 / (1 - p) */
double dropout_factor(const struct dropping *d, int64_t sample, int64_t index, int64_t head,
                      int64_t number);
/* Returns the factor of every weight [B, H, q_len, kv_len]; sample[B*q_len]. */
double *dropout_factors(const struct dropping *d, const struct ref_attention *a,
                        const int32_t *sample, int64_t first_head);

/* Half the distance of neighbours of the encoding at x: what one rounding to nearest may err; 0 for
 * fp32, which is reckoned in units. */
double rounding_of(enum hd_dtype dtype, double x);
/* Returns the rounding of a product's result `sum`, to which a bias, a residual or what was there
 * was added: `added`, the sum of their magnitudes. The library of a device may round the product to
 * the encoding before it adds them. cuBLASLt 13.1 does on an H100: in place, where the old value is
 * added by the store, and in front of a bias behind split-K. Two launches would do the same. */
double rounding_of_product(enum hd_dtype dtype, double sum, double added);

/* A bound for the error of a sum of K products that is kept in fp32, in units of u = 2^-24 times
 * the sum of the products' absolute values.
 *
 * Where every addition rounds to nearest, each errs by at most u times a partial sum: K units.
 *
 * Tensor cores, which multiply factors of 2 bytes on a device, truncate (tests/cudasim/tensor.c).
 * On an A100 an operation adds 8 products to the sum. Each of its 9 terms loses less than 1 at the
 * 24th bit after the leading bit of the largest term, which is no more than the sum of absolute
 * values: 9 units. The result loses less than 1 at its own 23rd bit: 2 units. So 11 units per
 * operation, and K / 8 operations. An H100 adds 16 products with one bit more: (17 / 2 + 2) units,
 * half as often. If the sum is split, each part may end in an operation that is not full: one more
 * is allowed for.
 *
 * Codes of 8 bits (HD_U8) are added on an H100 to a sum of some 14 bits, 32 products at a time
 * (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", 3.3.2). Errors of a little more than 2^10
 * units per operation were seen there: 2^11. */
double units_of_sum(enum hd_dtype factors, int64_t K);

/* Bit for bit. */
void assert_same_bits(const char *what, const struct tensor *a, const struct tensor *b);

/* The one free-standing number of a test: its standard fp32 tolerance, in units of 2^-24 of the
 * largest value. Sums of some hundred terms of either sign stay within it; a missing term, a wrong
 * index or a wrong factor do not. */
enum { FP32_UNITS = 48 };

#endif
