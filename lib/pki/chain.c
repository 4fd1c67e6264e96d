/* chain: a chain of hashes. Each text is preceded by its length, so no two links have equal bytes.
 */
#include <pthread.h>
#include <string.h>

#include <openssl/evp.h>

#include "pki/pki.h"

/* Bytes of a link that wait to be hashed, since each update of a digest has a price of its own. */
struct waiting {
    EVP_MD_CTX *hash;
    unsigned char bytes[512];
    size_t count;
};

static void flush(struct waiting *w)
{
    (void)EVP_DigestUpdate(w->hash, w->bytes, w->count);
    w->count = 0;
}

static void add(struct waiting *w, const void *bytes, size_t count)
{
    if (count > sizeof w->bytes - w->count)
        flush(w);
    if (count > sizeof w->bytes) {
        (void)EVP_DigestUpdate(w->hash, bytes, count);
        return;
    }
    memcpy(w->bytes + w->count, bytes, count);
    w->count += count;
}

static void add_number(struct waiting *w, uint64_t value)
{
    unsigned char bytes[8];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    add(w, bytes, sizeof bytes);
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
    struct waiting w;

    (void)pthread_once(&once, find_sha256);
    w.hash = EVP_MD_CTX_new();
    w.count = 0;
    if (!w.hash || !EVP_DigestInit_ex(w.hash, sha256, NULL)) {
        EVP_MD_CTX_free(w.hash);
        memset(ret_hash, 0, HD_PKI_HASH_BYTES); /* no memory: verifying the chain will fail */
        return;
    }
    add(&w, before, HD_PKI_HASH_BYTES);
    add_number(&w, number);
    add_number(&w, (uint64_t)time_ms);
    for (size_t i = 0; i < count; i++) {
        const char *text = texts[i] ? texts[i] : "";
        const size_t len = strlen(text);

        add_number(&w, len);
        add(&w, text, len);
    }
    flush(&w);
    (void)EVP_DigestFinal_ex(w.hash, ret_hash, NULL);
    EVP_MD_CTX_free(w.hash);
}
