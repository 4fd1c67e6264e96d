/* s3_sign: signature version 4 of Amazon's services, by the published rules. An S3 path is encoded
 * once and not normalised. libcurl's own is not used: several released versions sign wrongly as soon
 * as a query is not sorted or a key needs encoding. */
#include <stdio.h>
#include <string.h>

#include "s3_internal.h"

void s3_format_time(time_t time, char ret_text[S3_TIME_MAX])
{
    struct tm parts;

    (void)gmtime_r(&time, &parts);
    (void)strftime(ret_text, S3_TIME_MAX, "%Y%m%dT%H%M%SZ", &parts);
}

static void add_hash(struct hd_text *out, const struct hd_text *of)
{
    unsigned char hash[HD_PKI_HASH_BYTES];
    char text[HD_PKI_HASH_TEXT_MAX];

    hd_pki_hash(of->data ? of->data : "", of->len_bytes, hash);
    hd_pki_format_hash(hash, text);
    hd_text_add(out, "%s", text);
}

static void add_names(struct hd_text *out, const struct s3_signing *s)
{
    for (size_t i = 0; i < s->header_count; i++)
        hd_text_add(out, "%s%s", i ? ";" : "", s->headers[i].name);
}

/* Derives the key that signs: secret, then day, region and service. */
static void derive(const struct s3_signing *s, const char *time, unsigned char key[32])
{
    const char *const parts[] = {s->region, s->service, "aws4_request"};
    char secret[HD_S3_SECRET_MAX + 4];
    const int n = snprintf(secret, sizeof secret, "AWS4%s", s->keys->secret);

    hd_pki_hmac(secret, (size_t)n, time, 8, key);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        hd_pki_hmac(key, HD_PKI_HASH_BYTES, parts[i], strlen(parts[i]), key);
    explicit_bzero(secret, sizeof secret);
}

void s3_sign(const struct s3_signing *s, struct hd_text *out)
{
    unsigned char key[HD_PKI_HASH_BYTES];
    char time[S3_TIME_MAX], signature[HD_PKI_HASH_TEXT_MAX];
    struct hd_text request = {0}, text = {0};

    s3_format_time(s->time, time);
    hd_text_add(&request, "%s\n%s\n%s\n", s->method, s->path, s->query);
    for (size_t i = 0; i < s->header_count; i++)
        hd_text_add(&request, "%s:%s\n", s->headers[i].name, s->headers[i].value);
    hd_text_add(&request, "\n");
    add_names(&request, s);
    hd_text_add(&request, "\n%s", s->payload_hash);
    hd_text_add(&text, "AWS4-HMAC-SHA256\n%s\n%.8s/%s/%s/aws4_request\n", time, time, s->region,
                s->service);
    add_hash(&text, &request);
    derive(s, time, key);
    hd_pki_hmac(key, sizeof key, text.data ? text.data : "", text.len_bytes, key);
    hd_pki_format_hash(key, signature);
    hd_text_add(out, "AWS4-HMAC-SHA256 Credential=%s/%.8s/%s/%s/aws4_request, SignedHeaders=",
                s->keys->id, time, s->region, s->service);
    add_names(out, s);
    hd_text_add(out, ", Signature=%s", signature);
    out->failed |= request.failed | text.failed;
    explicit_bzero(key, sizeof key);
    hd_text_free(&request);
    hd_text_free(&text);
}
