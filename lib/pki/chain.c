/* chain: a chain of hashes. Each text is preceded by its length, so no two links have equal bytes.
 */
#include <pthread.h>
#include <string.h>

#include <openssl/evp.h>

#include "pki/pki.h"

static void add_number(EVP_MD_CTX *hash, uint64_t value)
{
    unsigned char bytes[8];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    (void)EVP_DigestUpdate(hash, bytes, sizeof bytes);
}

/* SHA-256, found once per process: with EVP_sha256(), which is taken if that failed, every digest looks
 * it up. */
static const EVP_MD *sha256;
static void find_sha256(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!sha256)
        sha256 = EVP_sha256();
}

void hd_pki_chain(const unsigned char before[HD_PKI_HASH_BYTES], uint64_t number, int64_t time_ms,
                  const char *const *texts, size_t count, unsigned char ret_hash[HD_PKI_HASH_BYTES])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    EVP_MD_CTX *hash = EVP_MD_CTX_new();

    (void)pthread_once(&once, find_sha256);
    if (!hash || !EVP_DigestInit_ex(hash, sha256, NULL)) {
        EVP_MD_CTX_free(hash);
        memset(ret_hash, 0, HD_PKI_HASH_BYTES); /* no memory: verifying the chain will fail */
        return;
    }
    (void)EVP_DigestUpdate(hash, before, HD_PKI_HASH_BYTES);
    add_number(hash, number);
    add_number(hash, (uint64_t)time_ms);
    for (size_t i = 0; i < count; i++) {
        const char *text = texts[i] ? texts[i] : "";

        add_number(hash, strlen(text));
        (void)EVP_DigestUpdate(hash, text, strlen(text));
    }
    (void)EVP_DigestFinal_ex(hash, ret_hash, NULL);
    EVP_MD_CTX_free(hash);
}
