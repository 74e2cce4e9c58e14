/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenSSL, loaded when it is needed. It costs a process half a megabyte of its own and three
 * milliseconds to start with it, and a node has helper processes, tools and whole installations
 * that never speak TLS. So nothing links with it: calls go through this table, which
 * openssl_load() fills. What the headers of OpenSSL have as macros over these functions is written
 * out by the callers.
 */
#ifndef RINGVOL_RPC_OPENSSL_H
#define RINGVOL_RPC_OPENSSL_H

#include "base/err.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

/* clang-format off */
#define OPENSSL_CALLS(X) \
	X(ASN1_STRING_get0_data) X(ASN1_STRING_length) X(ASN1_TIME_to_tm) X(BIO_clear_flags) \
	X(BIO_free) X(BIO_get_data) X(BIO_get_new_index) X(BIO_meth_free) X(BIO_meth_new) \
	X(BIO_meth_set_ctrl) X(BIO_meth_set_read_ex) X(BIO_meth_set_write_ex) X(BIO_new) \
	X(BIO_new_mem_buf) X(BIO_set_data) X(BIO_set_flags) X(BIO_set_init) X(ERR_clear_error) \
	X(ERR_get_error) X(ERR_peek_error) X(ERR_reason_error_string) X(EVP_DigestFinal_ex) \
	X(EVP_DigestInit_ex) X(EVP_DigestUpdate) X(EVP_MD_CTX_free) X(EVP_MD_CTX_new) \
	X(EVP_PKEY_free) X(EVP_sha256) X(GENERAL_NAMES_free) X(OPENSSL_cleanse) \
	X(OPENSSL_init_ssl) X(OPENSSL_sk_free) X(OPENSSL_sk_num) X(OPENSSL_sk_value) \
	X(PEM_X509_INFO_read_bio) X(PEM_read_bio_PrivateKey) X(PEM_read_bio_X509) \
	X(SSL_CTX_check_private_key) X(SSL_CTX_ctrl) X(SSL_CTX_free) X(SSL_CTX_get_cert_store) \
	X(SSL_CTX_new) X(SSL_CTX_set_alpn_protos) X(SSL_CTX_set_alpn_select_cb) \
	X(SSL_CTX_set_ciphersuites) X(SSL_CTX_set_client_hello_cb) X(SSL_CTX_set_num_tickets) \
	X(SSL_CTX_set_options) X(SSL_CTX_set_security_level) X(SSL_CTX_set_verify) \
	X(SSL_CTX_set_verify_depth) X(SSL_CTX_use_PrivateKey) X(SSL_CTX_use_certificate) \
	X(SSL_alert_desc_string_long) X(SSL_client_hello_get0_ext) X(SSL_ctrl) \
	X(SSL_do_handshake) X(SSL_free) X(SSL_get0_alpn_selected) X(SSL_get0_peer_certificate) \
	X(SSL_get_error) X(SSL_get_ex_data_X509_STORE_CTX_idx) X(SSL_get_peer_cert_chain) \
	X(SSL_get_rbio) X(SSL_get_verify_result) X(SSL_new) X(SSL_read_ex) \
	X(SSL_select_next_proto) X(SSL_set_accept_state) X(SSL_set_bio) X(SSL_set_connect_state) \
	X(SSL_set_fd) X(SSL_set_msg_callback) X(SSL_set_options) X(SSL_set_verify) X(SSL_shutdown) X(SSL_write_ex) \
	X(TLS_method) X(X509_INFO_free) X(X509_STORE_CTX_free) X(X509_STORE_CTX_get0_cert) \
	X(X509_STORE_CTX_get_current_cert) X(X509_STORE_CTX_get_error) \
	X(X509_STORE_CTX_get_error_depth) X(X509_STORE_CTX_get_ex_data) X(X509_STORE_CTX_init) \
	X(X509_STORE_CTX_new) X(X509_STORE_CTX_set_default) X(X509_STORE_CTX_set_error) \
	X(X509_STORE_CTX_set_flags) X(X509_STORE_CTX_set_verify_cb) X(X509_STORE_add_cert) \
	X(X509_STORE_add_crl) X(X509_STORE_set_flags) X(X509_check_purpose) X(X509_free) \
	X(X509_get0_notAfter) X(X509_get0_notBefore) X(X509_get_ext_d2i) X(X509_verify_cert) \
	X(X509_verify_cert_error_string)
/* clang-format on */

#define OPENSSL_MEMBER(name) __typeof__(name) *name;
extern struct openssl_table {
	OPENSSL_CALLS(OPENSSL_MEMBER)
} openssl;
#undef OPENSSL_MEMBER

/* Loads the library, unless it is there; once loaded it stays. From any thread, and blocking. 0, or
 * -errno with what is missing. */
int openssl_load(struct err *err);

#endif
