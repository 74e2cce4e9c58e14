/* SPDX-License-Identifier: Apache-2.0 */
/* Finds libcryptsetup by the name that it has on every system, and each function by its own. */
#include "backends/crypt/luks_lib.h"

#include <dlfcn.h>
#include <stddef.h>

struct luks_table luks;

static const char library[] = "libcryptsetup.so.12";

static const struct {
	const char *name;
	size_t at;
} calls[] = {
#define CALL(name) {#name, offsetof(struct luks_table, name)},
	LUKS_CALLS(CALL)
#undef CALL
};

int luks_load(struct err *err)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL)
		return err_set(err, ERR_PRECONDITION,
			"encrypted volumes need libcryptsetup, which cannot be loaded (%s): install the package libcryptsetup12",
			dlerror());
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *call = dlsym(handle, calls[i].name);
		if (call == NULL)
			return err_set(err, ERR_PRECONDITION,
				"%s has no %s: install the package libcryptsetup12, 2.4 or newer",
				library, calls[i].name);
		*(void **)(void *)((char *)&luks + calls[i].at) = call;
	}
	return 0;
}
