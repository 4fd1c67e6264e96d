/* A library in the place of cuBLASLt, which nothing calls. */
int hd_standin_cublas(void);

__attribute__((visibility("default"))) int hd_standin_cublas(void)
{
    return 99;
}
