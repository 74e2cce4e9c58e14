/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds OpenSSL 3 by the name that it has on every system, and each function by its own. It fails
 * where the library is not installed, or is one without a function that is used here.
 */
#include "rpc/openssl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct openssl_table openssl;

/* libssl leads to libcrypto: a name is looked for in what a library leads to as well. */
static const char library[] = "libssl.so.3";

static const struct {
	const char *name;
	size_t at;
} calls[] = {
#define CALL(name) {#name, offsetof(struct openssl_table, name)},
	OPENSSL_CALLS(CALL)
#undef CALL
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

static int load(struct err *err)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL)
		return err_set(err, ERR_PRECONDITION,
			"TLS needs OpenSSL 3, which cannot be loaded (%s); install the package "
			"libssl3",
			dlerror());
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *call = dlsym(handle, calls[i].name);
		if (call == NULL) {
			dlclose(handle);
			return err_set(err, ERR_PRECONDITION,
				"%s is not of OpenSSL 3: it has no %s; install the package libssl3",
				library, calls[i].name);
		}
		*(void **)(void *)((char *)&openssl + calls[i].at) = call;
	}
	/* The machine's openssl.cnf has no say: two nodes are to agree whatever it is. */
	openssl.OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
	return 0;
}

int openssl_load(struct err *err)
{
	pthread_mutex_lock(&lock);
	int res = loaded ? 0 : load(err);
	loaded = res == 0;
	pthread_mutex_unlock(&lock);
	return res;
}
