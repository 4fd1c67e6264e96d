#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "base/random.h"
#include "pki/pki.h"

void hd_pki_hash(const void *bytes, size_t count, unsigned char ret_hash[HD_PKI_HASH_BYTES])
{
    (void)SHA256(bytes, count, ret_hash);
}

void hd_pki_hmac(const void *key, size_t key_bytes, const void *bytes, size_t count,
                 unsigned char ret_hash[HD_PKI_HASH_BYTES])
{
    unsigned char hash[HD_PKI_HASH_BYTES];

    if (!HMAC(EVP_sha256(), key, (int)key_bytes, bytes, count, hash, NULL))
        memset(hash, 0, sizeof hash); /* no memory: the peer refuses the signature */
    memcpy(ret_hash, hash, sizeof hash);
    explicit_bzero(hash, sizeof hash);
}

void hd_pki_format_hash(const unsigned char hash[HD_PKI_HASH_BYTES],
                        char ret_text[HD_PKI_HASH_TEXT_MAX])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < HD_PKI_HASH_BYTES; i++) {
        ret_text[2 * i] = digits[hash[i] >> 4];
        ret_text[2 * i + 1] = digits[hash[i] & 15];
    }
    ret_text[2 * HD_PKI_HASH_BYTES] = '\0';
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hd_pki_parse_hash(const char *text, unsigned char ret_hash[HD_PKI_HASH_BYTES])
{
    unsigned char hash[HD_PKI_HASH_BYTES];

    if (strlen(text) != HD_PKI_HASH_TEXT_MAX - 1)
        return false;
    for (size_t i = 0; i < HD_PKI_HASH_BYTES; i++) {
        const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        hash[i] = (unsigned char)(high << 4 | low);
    }
    memcpy(ret_hash, hash, sizeof hash);
    return true;
}

enum hd_status hd_pki_make_secret(char ret_text[HD_PKI_HASH_TEXT_MAX])
{
    unsigned char bytes[HD_PKI_HASH_BYTES];
    const enum hd_status st = hd_random_bytes(bytes, sizeof bytes);

    if (!st)
        hd_pki_format_hash(bytes, ret_text);
    explicit_bzero(bytes, sizeof bytes);
    return st;
}
