/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates of a test: made by OpenSSL as they are needed, written into a directory of the
 * test's own, gone with it. */
#ifndef RINGVOL_TESTS_WIRE_TLS_CERTS_H
#define RINGVOL_TESTS_WIRE_TLS_CERTS_H

#include "rpc/tls.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef certs_must
#include <criterion/criterion.h>
#define certs_must(condition) cr_assert(condition)
#endif

struct issued {
	EVP_PKEY *key;
	X509 *cert;
};

/* What a certificate is to look like; zero is the ordinary. */
struct spec {
	const char *names;   /* "URI:ringvol://controller,DNS:a"; NULL: none */
	const char *usage;   /* "clientAuth"; NULL: both; "": no such extension */
	int from_s, until_s; /* relative to now; 0: an hour ago, in a day */
	bool ca;
};

static inline void add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
	X509V3_CTX ctx;
	X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
	X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
	certs_must(extension != NULL);
	X509_add_ext(cert, extension, -1);
	X509_EXTENSION_free(extension);
}

/* by: NULL: by itself. */
static inline struct issued issue(const struct issued *by, const struct spec *spec)
{
	static long serial;
	struct issued new = {.key = EVP_EC_gen("P-256"), .cert = X509_new()};
	X509 *issuer = by != NULL ? by->cert : new.cert;
	char common_name[32];
	certs_must(new.key != NULL &&new.cert != NULL);
	snprintf(common_name, sizeof(common_name), "test %ld", ++serial);
	X509_set_version(new.cert, X509_VERSION_3);
	ASN1_INTEGER_set(X509_get_serialNumber(new.cert), serial);
	X509_gmtime_adj(X509_getm_notBefore(new.cert), spec->from_s != 0 ? spec->from_s : -3600);
	X509_gmtime_adj(X509_getm_notAfter(new.cert), spec->until_s != 0 ? spec->until_s : 86400);
	X509_NAME_add_entry_by_txt(X509_get_subject_name(new.cert), "CN", MBSTRING_ASC,
		(const unsigned char *)common_name, -1, -1, 0);
	X509_set_issuer_name(new.cert, X509_get_subject_name(issuer));
	X509_set_pubkey(new.cert, new.key);
	if (spec->ca)
		add_extension(new.cert, issuer, NID_basic_constraints, "critical,CA:TRUE");
	else if (spec->usage == NULL || spec->usage[0] != '\0')
		add_extension(new.cert, issuer, NID_ext_key_usage,
			spec->usage != NULL ? spec->usage : "clientAuth,serverAuth");
	if (spec->names != NULL)
		add_extension(new.cert, issuer, NID_subject_alt_name, spec->names);
	certs_must(X509_sign(new.cert, by != NULL ? by->key : new.key, EVP_sha256()) > 0);
	return new;
}

static inline void issued_free(struct issued *issued)
{
	EVP_PKEY_free(issued->key);
	X509_free(issued->cert);
}

static inline struct issued issue_ca(void)
{
	return issue(NULL, &(struct spec){.ca = true});
}

/* A list of the CA that names the certificate as revoked; NULL: a list without names. */
static inline X509_CRL *issue_crl(const struct issued *ca, const struct issued *revoked)
{
	X509_CRL *crl = X509_CRL_new();
	ASN1_TIME *now = X509_gmtime_adj(NULL, -60), *then = X509_gmtime_adj(NULL, 3600);
	X509_CRL_set_version(crl, X509_CRL_VERSION_2);
	X509_CRL_set_issuer_name(crl, X509_get_subject_name(ca->cert));
	X509_CRL_set1_lastUpdate(crl, now);
	X509_CRL_set1_nextUpdate(crl, then);
	if (revoked != NULL) {
		X509_REVOKED *entry = X509_REVOKED_new();
		X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(revoked->cert));
		X509_REVOKED_set_revocationDate(entry, now);
		X509_CRL_add0_revoked(crl, entry);
	}
	X509_CRL_sort(crl);
	certs_must(X509_CRL_sign(crl, ca->key, EVP_sha256()) > 0);
	ASN1_TIME_free(now);
	ASN1_TIME_free(then);
	return crl;
}

/* ---- files ---- */

struct cert_dir {
	char dir[40], cert[64], key[64], ca[64];
};

static inline void cert_dir_open(struct cert_dir *d)
{
	strcpy(d->dir, "/tmp/ringvol-tls-XXXXXX");
	certs_must(mkdtemp(d->dir) != NULL);
	snprintf(d->cert, sizeof(d->cert), "%s/tls.crt", d->dir);
	snprintf(d->key, sizeof(d->key), "%s/tls.key", d->dir);
	snprintf(d->ca, sizeof(d->ca), "%s/ca.crt", d->dir);
}

static inline void cert_dir_close(struct cert_dir *d)
{
	unlink(d->cert);
	unlink(d->key);
	unlink(d->ca);
	rmdir(d->dir);
}

static inline struct tls_files cert_dir_files(const struct cert_dir *d)
{
	return (struct tls_files){.cert = d->cert, .key = d->key, .ca = d->ca};
}

static inline FILE *cert_file(const char *path)
{
	char next[80];
	snprintf(next, sizeof(next), "%s.new", path);
	FILE *file = fopen(next, "we");
	certs_must(file != NULL);
	return file;
}

static inline void cert_file_done(FILE *file, const char *path)
{
	char next[80];
	snprintf(next, sizeof(next), "%s.new", path);
	certs_must(fclose(file) == 0);
	certs_must(rename(next, path) == 0);
}

static inline void write_cert(const char *path, const struct issued *issued)
{
	FILE *file = cert_file(path);
	certs_must(PEM_write_X509(file, issued->cert) == 1);
	cert_file_done(file, path);
}

static inline void write_key(const char *path, const struct issued *issued)
{
	FILE *file = cert_file(path);
	certs_must(PEM_write_PrivateKey(file, issued->key, NULL, NULL, 0, NULL, NULL) == 1);
	cert_file_done(file, path);
}

static inline void write_text(const char *path, const char *text)
{
	FILE *file = cert_file(path);
	certs_must(fputs(text, file) >= 0);
	cert_file_done(file, path);
}

static inline void write_all(
	const struct cert_dir *d, const struct issued *own, const struct issued *ca)
{
	write_cert(d->cert, own);
	write_key(d->key, own);
	write_cert(d->ca, ca);
}

/* A struct tls of a fresh certificate with these names. */
static inline struct tls *tls_of(const struct issued *ca, const struct spec *spec)
{
	struct cert_dir d;
	struct err err = {0};
	struct tls *tls = NULL;
	struct issued own = issue(ca, spec);
	cert_dir_open(&d);
	write_all(&d, &own, ca);
	const struct tls_files files = cert_dir_files(&d);
	int res = tls_open(&tls, &files, &err);
	if (res < 0)
		fprintf(stderr, "%s\n", err.message);
	certs_must(res == 0);
	cert_dir_close(&d);
	issued_free(&own);
	return tls;
}

#endif
