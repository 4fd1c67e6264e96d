#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "base/digits.h"
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
    hd_hex_format(hash, HD_PKI_HASH_BYTES, ret_text);
}

bool hd_pki_parse_hash(const char *text, unsigned char ret_hash[HD_PKI_HASH_BYTES])
{
    if (strlen(text) != HD_PKI_HASH_TEXT_MAX - 1 || text[strspn(text, HD_HEX_DIGITS)])
        return false;
    for (size_t i = 0; i < HD_PKI_HASH_BYTES; i++)
        ret_hash[i] =
            (unsigned char)(hd_hex_digit(text[2 * i]) << 4 | hd_hex_digit(text[2 * i + 1]));
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
