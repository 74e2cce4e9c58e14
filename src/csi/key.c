/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request's secrets lie in its arena, which is wiped when the call ends. The key is moved out of
 * there as soon as the operation has begun, to pages that are locked.
 */
#include "csi/key.h"

#include "base/secret.h"
#include "csi/request.h"

#include <errno.h>
#include <string.h>

static const Csi__V1__StringPair *find(Csi__V1__StringPair **secrets, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(csi_str(secrets[i]->key), CSI_KEY_FIELD) == 0 &&
			secrets[i]->value.len != 0)
			return secrets[i];
	return NULL;
}

int csi_key_check(const char *volume, Csi__V1__StringPair **secrets, size_t n, const char *what,
	struct err *err)
{
	if (find(secrets, n) != NULL)
		return 0;
	return err_set(err, ERR_INVALID,
		"secrets: volume %s is encrypted, and the call brings no key: its class has to name a secret with the field '%s' by csi.storage.k8s.io/%s-secret-name and -secret-namespace",
		volume, CSI_KEY_FIELD, what);
}

int csi_key_take(Csi__V1__StringPair **secrets, size_t n, struct secret **ret)
{
	const Csi__V1__StringPair *pair = ret != NULL ? find(secrets, n) : NULL;
	struct secret *key = pair != NULL ? secret_new(pair->value.data, pair->value.len) : NULL;
	for (size_t i = 0; i < n; i++)
		if (secrets[i]->value.len != 0)
			secret_wipe(secrets[i]->value.data, secrets[i]->value.len);
	if (pair != NULL && key == NULL)
		return -ENOMEM;
	if (ret != NULL)
		*ret = key;
	return 0;
}
