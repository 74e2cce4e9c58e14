/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters: a table of keys and of the words they take. What is wrong is answered with the key,
 * and the values it takes. mkfsOptions is only measured here; whether the file system takes them is
 * asked when it is known which (csi_params_choose_fs).
 *
 * Some keys are mutable: they come with a VolumeAttributesClass, too, which goes before the class.
 * I/O limits come from nowhere else. `iops` and `bandwidth` are a name for both directions, and a
 * direction's own key goes before them, in whatever order a map brings its keys.
 */
#include "csi/params.h"
#include "base/options.h"

#include "backends/backend.h"
#include "csi/request.h"
#include "pool/golden.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define OTHERS_PREFIX "csi.storage.k8s.io/"

enum { VALUE_SHOWN_MAX = 64 };

enum where { FROM_CLASS = 1 << 0, FROM_MUTABLE = 1 << 1, FROM_BOTH = FROM_CLASS | FROM_MUTABLE };

/* A key's values are words, or it has a function of its own. */
struct key {
	const char *name, *takes;
	size_t field; /* an unsigned of struct csi_params */
	struct {
		const char *word;
		unsigned value;
	} words[3];
	int (*parse)(
		const struct key *key, const char *value, struct csi_params *ret, struct err *err);
	enum where from;  /* 0: FROM_CLASS */
	unsigned mutable; /* enum csi_mutable: what it gives */
};

static const char *field_of(enum where from)
{
	return from == FROM_CLASS ? "parameters" : "mutable_parameters";
}

static int wrong_value(const struct key *key, const char *value, struct err *err)
{
	const char *field = field_of(key->from == FROM_MUTABLE ? FROM_MUTABLE : FROM_CLASS);
	if (strlen(value) > VALUE_SHOWN_MAX)
		return err_set(err, ERR_INVALID, "%s: %s takes %s", field, key->name, key->takes);
	return err_set(err, ERR_INVALID, "%s: %s is '%s', but takes %s", field, key->name, value,
		key->takes);
}

static int parse_word(
	const struct key *key, const char *value, struct csi_params *ret, struct err *err)
{
	for (unsigned i = 0; i < 3 && key->words[i].word != NULL; i++) {
		if (strcmp(key->words[i].word, value) != 0)
			continue;
		*(unsigned *)((char *)ret + key->field) = key->words[i].value;
		return 0;
	}
	return wrong_value(key, value, err);
}

static int parse_pool(
	const struct key *key, const char *value, struct csi_params *ret, struct err *err)
{
	if (value[0] == '\0')
		return wrong_value(key, value, err);
	ret->pool = value;
	ret->pool_given = true;
	return 0;
}

static int parse_source(
	const struct key *key, const char *value, struct csi_params *ret, struct err *err)
{
	if (!golden_name_valid(value))
		return wrong_value(key, value, err);
	ret->source = value;
	return 0;
}

static int parse_fstype(
	const struct key *key, const char *value, struct csi_params *ret, struct err *err)
{
	if (value[0] == '\0')
		return 0;
	if (fsimg_parse_name(value, &ret->fs) < 0)
		return wrong_value(key, value, err);
	ret->fs_given = true;
	return 0;
}

static int parse_mkfs_options(
	const struct key *key, const char *value, struct csi_params *ret, struct err *err)
{
	if (strlen(value) >= RECORD_OPTIONS_MAX)
		return err_set(err, ERR_INVALID, "parameters: %s is longer than %d bytes",
			key->name, RECORD_OPTIONS_MAX - 1);
	ret->mkfs_options = value;
	return 0;
}

/* ---- I/O limits ---- */

static bool is_bandwidth(const struct key *key)
{
	return (key->mutable & (CSI_READ_BANDWIDTH | CSI_WRITE_BANDWIDTH)) != 0;
}

/* "", "0" and "none" take the limit away. */
static int parse_limit(
	const struct key *key, const char *value, struct csi_params *ret, struct err *err)
{
	uint64_t min = is_bandwidth(key) ? IO_LIMITS_BANDWIDTH_MIN : IO_LIMITS_IOPS_MIN;
	uint64_t max = is_bandwidth(key) ? IO_LIMITS_BANDWIDTH_MAX : IO_LIMITS_IOPS_MAX;
	uint64_t number = 0;
	bool none = value[0] == '\0' || strcmp(value, "none") == 0;
	if (!none && (!options_quantity(value, &number) ||
			     (number != 0 && (number < min || number > max))))
		return wrong_value(key, value, err);
	uint64_t *const at[] = {&ret->limits.read_iops, &ret->limits.write_iops,
		&ret->limits.read_bandwidth, &ret->limits.write_bandwidth};
	for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++)
		if (key->mutable & (1u << i))
			*at[i] = number;
	return 0;
}

#define FIELD(name) .field = offsetof(struct csi_params, name)

#define LIMIT(what) .parse = parse_limit, .from = FROM_MUTABLE, .mutable = (what)
#define TAKES_IOPS                                                                                 \
	"operations a second, 10 to 1G (with k, M or G behind the number), or none for no limit"
#define TAKES_BANDWIDTH                                                                            \
	"bytes a second, 64Ki to 1Pi (with k, M, G, T, P, Ki, Mi, Gi, Ti or Pi behind the number), or none for no limit"

static const struct key keys[] = {
	{"pool", "the name of a pool", .parse = parse_pool},
	{"source", "the name of a golden image", .parse = parse_source},
	{"device", "loop, ublk or disk", FIELD(device),
		{{"loop", BACKEND_LOOP}, {"ublk", BACKEND_UBLK}, {"disk", BACKEND_DISK}}},
	{"provisioning", "thin or thick", FIELD(thick), {{"thin", false}, {"thick", true}}},
	{OTHERS_PREFIX "fstype", "ext4, xfs or btrfs", .parse = parse_fstype},
	{"mkfsOptions", "options of mkfs", .parse = parse_mkfs_options},
	{"blockSize", "512 or 4096", FIELD(block_size), {{"512", 512}, {"4096", 4096}}},
	{"eraseOnDelete", "none, discard or zero", FIELD(erase),
		{{"none", RECORD_ERASE_NONE}, {"discard", RECORD_ERASE_DISCARD},
			{"zero", RECORD_ERASE_ZERO}},
		.from = FROM_BOTH, .mutable = CSI_ERASE},
	{"snapshotFreeze", "true or false", FIELD(snapshot_freeze),
		{{"false", false}, {"true", true}}, .from = FROM_BOTH,
		.mutable = CSI_SNAPSHOT_FREEZE},
	{"allowVolumeModeChange", "true or false", FIELD(allow_mode_change),
		{{"false", false}, {"true", true}}},
	{"encryption", "none or luks2", FIELD(encryption),
		{{"none", RECORD_PLAIN}, {"luks2", RECORD_LUKS2}}},
	{"attach", "local or remote", FIELD(attach),
		{{"local", RECORD_ATTACH_LOCAL}, {"remote", RECORD_ATTACH_REMOTE}}},
	/* For both directions first: see csi_params_parse_mutable(). */
	{"iops", TAKES_IOPS, LIMIT(CSI_READ_IOPS | CSI_WRITE_IOPS)},
	{"bandwidth", TAKES_BANDWIDTH, LIMIT(CSI_READ_BANDWIDTH | CSI_WRITE_BANDWIDTH)},
	{"readIops", TAKES_IOPS, LIMIT(CSI_READ_IOPS)},
	{"writeIops", TAKES_IOPS, LIMIT(CSI_WRITE_IOPS)},
	{"readBandwidth", TAKES_BANDWIDTH, LIMIT(CSI_READ_BANDWIDTH)},
	{"writeBandwidth", TAKES_BANDWIDTH, LIMIT(CSI_WRITE_BANDWIDTH)},
};
enum { KEYS = sizeof(keys) / sizeof(keys[0]) };

static bool is_others(const char *key)
{
	return strncmp(key, OTHERS_PREFIX, strlen(OTHERS_PREFIX)) == 0;
}

static const struct key *find_key(const char *name)
{
	for (const struct key *k = keys; k < keys + KEYS; k++)
		if (strcmp(k->name, name) == 0)
			return k;
	return NULL;
}

static int unknown_key(enum where from, const char *name, struct err *err)
{
	if (strlen(name) > VALUE_SHOWN_MAX)
		return err_set(err, ERR_INVALID, "%s: a key of %zu bytes is not known",
			field_of(from), strlen(name));
	if (find_key(name) == NULL)
		return err_set(err, ERR_INVALID, "%s: '%s' is not known", field_of(from), name);
	if (from == FROM_CLASS)
		return err_set(err, ERR_INVALID,
			"parameters: %s is a mutable parameter: put it into a VolumeAttributesClass",
			name);
	return err_set(err, ERR_INVALID,
		"mutable_parameters: %s cannot be changed later: it belongs to the StorageClass",
		name);
}

int csi_params_parse(Csi__V1__StringPair **pairs, size_t n, struct csi_params *ret, struct err *err)
{
	struct csi_params params = {
		.pool = "default",
		.source = "",
		.device = BACKEND_LOOP,
		.fs = FSIMG_EXT4,
		.mkfs_options = "",
		.erase = RECORD_ERASE_NONE,
	};
	for (size_t i = 0; i < n; i++) {
		const char *name = csi_str(pairs[i]->key);
		const struct key *k = find_key(name);
		int r = 0;
		if (k != NULL && k->from != FROM_MUTABLE) {
			r = (k->parse != NULL ? k->parse : parse_word)(
				k, csi_str(pairs[i]->value), &params, err);
			params.device_given |= k->field == offsetof(struct csi_params, device);
			params.thick_given |= k->field == offsetof(struct csi_params, thick);
		} else if (!is_others(name))
			r = unknown_key(FROM_CLASS, name, err);
		if (r < 0)
			return r;
	}
	*ret = params;
	return 0;
}

int csi_params_parse_mutable(
	Csi__V1__StringPair **pairs, size_t n, struct csi_params *params, struct err *err)
{
	struct csi_params with = *params;
	for (size_t i = 0; i < n; i++) {
		const struct key *k = find_key(csi_str(pairs[i]->key));
		if (k == NULL || !(k->from & FROM_MUTABLE))
			return unknown_key(FROM_MUTABLE, csi_str(pairs[i]->key), err);
	}
	/* In the order of the table, in which a direction's own key comes last. */
	for (const struct key *k = keys; k < keys + KEYS; k++)
		for (size_t i = 0; i < n; i++) {
			if (strcmp(k->name, csi_str(pairs[i]->key)) != 0)
				continue;
			struct key here = *k; /* what is wrong is wrong in this field */
			here.from = FROM_MUTABLE;
			int r = (k->parse != NULL ? k->parse : parse_word)(
				&here, csi_str(pairs[i]->value), &with, err);
			if (r < 0)
				return r;
			with.given |= k->mutable;
		}
	*params = with;
	return 0;
}

void csi_params_lay_limits(const struct csi_params *params, struct io_limits *limits)
{
	if (params->given & CSI_READ_IOPS)
		limits->read_iops = params->limits.read_iops;
	if (params->given & CSI_WRITE_IOPS)
		limits->write_iops = params->limits.write_iops;
	if (params->given & CSI_READ_BANDWIDTH)
		limits->read_bandwidth = params->limits.read_bandwidth;
	if (params->given & CSI_WRITE_BANDWIDTH)
		limits->write_bandwidth = params->limits.write_bandwidth;
}

int csi_params_check_none(Csi__V1__StringPair **pairs, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		const char *key = csi_str(pairs[i]->key), *value = csi_str(pairs[i]->value);
		if (is_others(key))
			continue;
		if (strcmp(key, "deletionPolicy") != 0 && find_key(key) != NULL)
			return err_set(err, ERR_INVALID,
				"parameters: %s belongs to a StorageClass or VolumeAttributesClass; classes of snapshots have no parameters",
				key);
		if (strcmp(key, "deletionPolicy") != 0)
			return unknown_key(FROM_CLASS, key, err);
		if (strcmp(value, "Delete") != 0 && strcmp(value, "Retain") != 0)
			return err_set(err, ERR_INVALID,
				"parameters: deletionPolicy is a field of the class, beside its parameters, and is Delete or Retain");
	}
	return 0;
}

int csi_params_choose_fs(const struct csi_params *params, const struct csi_access *access,
	enum fsimg_type source_fs, enum fsimg_type *ret, struct err *err)
{
	*ret = FSIMG_NONE;
	/* A class for both kinds may carry options that mean nothing to a block volume. */
	if (access->block)
		return 0;
	if (access->fs_given && params->fs_given && access->fs != params->fs)
		return err_set(err, ERR_INVALID,
			"parameters: " OTHERS_PREFIX
			"fstype is %s, but volume_capability's fs_type is %s; give one",
			fsimg_name(params->fs), fsimg_name(access->fs));
	enum fsimg_type fs = access->fs_given          ? access->fs
			     : params->fs_given        ? params->fs
			     : source_fs != FSIMG_NONE ? source_fs
						       : params->fs;
	int r = fsimg_check_mkfs_options(fs, params->mkfs_options, err);
	if (r < 0)
		return err_set(err, ERR_INVALID, "parameters: mkfsOptions are not allowed for %s",
			fsimg_name(fs));
	/* mke2fs would leave what the tables lie on as it is, which reads as noise there. */
	if (params->encryption != RECORD_PLAIN &&
		strstr(params->mkfs_options, "assume_storage_prezeroed") != NULL)
		return err_set(err, ERR_INVALID,
			"parameters: mkfsOptions with assume_storage_prezeroed are not for encrypted volumes, which do not read as zeros");
	*ret = fs;
	return 0;
}

int csi_params_settle(struct csi_params *params, const struct pool *pool, struct err *err)
{
	bool disk = params->device == BACKEND_DISK;
	if (!pool_is_raw(pool) && disk)
		return err_set(err, ERR_PRECONDITION,
			"parameters: device disk is for pools on raw disks, and pool %s is in a directory: use loop or ublk",
			pool_name(pool));
	if (!pool_is_raw(pool))
		return 0;
	if (params->device_given && !disk)
		return err_set(err, ERR_PRECONDITION,
			"parameters: pool %s is on raw disks, whose volumes have device-mapper devices: use device disk, or leave the parameter out",
			pool_name(pool));
	bool thin = params->thick_given && !params->thick;
	if (thin && params->erase != RECORD_ERASE_NONE)
		return err_set(err, ERR_PRECONDITION,
			"parameters: eraseOnDelete would overwrite nothing of a thin volume in pool %s, which is on raw disks: its blocks are overwritten before somebody else gets them; leave it out, or use provisioning thick",
			pool_name(pool));
	if (params->block_size != 0 && params->block_size != pool_block_size(pool))
		return err_set(err, ERR_PRECONDITION,
			"parameters: blockSize is %u, but pool %s is on raw disks, whose blocks of %u its volumes have; leave the parameter out",
			params->block_size, pool_name(pool), pool_block_size(pool));
	params->device = BACKEND_DISK;
	params->thick = !thin;
	return 0;
}

int csi_params_compare(const struct csi_params *given, const struct csi_access *access,
	const struct pool_object *volume, struct err *err)
{
	const struct record *rec = volume->rec;
	struct csi_params settled = *given;
	struct err elsewise = {0}; /* then it differs from the volume */
	(void)csi_params_settle(&settled, volume->pool, &elsewise);
	const struct csi_params *params = &settled;
	bool from_source = rec->source != RECORD_SOURCE_NONE;
	if (access->block != (rec->fs == FSIMG_NONE))
		return err_set(err, ERR_EXISTS, "volume %s exists as a %s volume", rec->name,
			rec->fs == FSIMG_NONE ? "block" : "mount");
	enum fsimg_type fs;
	int r = csi_params_choose_fs(params, access, from_source ? rec->fs : FSIMG_NONE, &fs, err);
	if (r < 0)
		return r;
	if (fs != rec->fs)
		return err_set(err, ERR_EXISTS, "volume %s exists with file system %s, not %s",
			rec->name, fsimg_name(rec->fs), fsimg_name(fs));
	if ((params->pool_given || !from_source) &&
		strcmp(params->pool, pool_name(volume->pool)) != 0)
		return err_set(err, ERR_EXISTS, "volume %s exists in another pool, %s", rec->name,
			pool_name(volume->pool));
	const struct {
		const char *key;
		bool same;
	} others[] = {
		{"device", params->device == rec->device},
		{"provisioning", params->thick == rec->thick},
		{"blockSize", params->block_size == 0 || params->block_size == rec->block_size},
		{"eraseOnDelete", params->erase == rec->erase},
		{"snapshotFreeze", params->snapshot_freeze == rec->snapshot_freeze},
		{"allowVolumeModeChange", params->allow_mode_change == rec->allow_mode_change},
		{"encryption", params->encryption == rec->encryption},
		{"attach", params->attach == rec->attach},
		{"mkfsOptions",
			fs == FSIMG_NONE || strcmp(params->mkfs_options, rec->mkfs_options) == 0},
	};
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (!others[i].same)
			return err_set(err, ERR_EXISTS, "volume %s exists with another %s",
				rec->name, others[i].key);
	return csi_params_compare_mutable(params, volume, err);
}

int csi_params_compare_mutable(
	const struct csi_params *given, const struct pool_object *volume, struct err *err)
{
	const struct record *rec = volume->rec;
	const struct io_limits *want = &given->limits, *has = &rec->limits;
	const struct {
		enum csi_mutable what;
		const char *key;
		bool same;
	} all[] = {
		{CSI_READ_IOPS, "readIops", want->read_iops == has->read_iops},
		{CSI_WRITE_IOPS, "writeIops", want->write_iops == has->write_iops},
		{CSI_READ_BANDWIDTH, "readBandwidth", want->read_bandwidth == has->read_bandwidth},
		{CSI_WRITE_BANDWIDTH, "writeBandwidth",
			want->write_bandwidth == has->write_bandwidth},
		{CSI_ERASE, "eraseOnDelete", given->erase == rec->erase},
		{CSI_SNAPSHOT_FREEZE, "snapshotFreeze",
			given->snapshot_freeze == rec->snapshot_freeze},
	};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if ((given->given & all[i].what) && !all[i].same)
			return err_set(err, ERR_EXISTS, "volume %s exists with another %s",
				rec->name, all[i].key);
	return 0;
}

int csi_params_check_erase(enum record_erase erase, const struct pool *pool, struct err *err)
{
	const struct fs_features *features = pool_features(pool);
	if (erase != RECORD_ERASE_NONE && features->nocow_lies)
		return err_set(err, ERR_PRECONDITION,
			"eraseOnDelete would erase nothing in pool %s, whose file system copies on write; use a pool on XFS or ext4",
			pool_name(pool));
	if (erase == RECORD_ERASE_DISCARD && !features->discard)
		return err_set(err, ERR_PRECONDITION,
			"eraseOnDelete: discard would erase nothing in pool %s, whose disk takes no discards (queue/discard_max_bytes in /sys/block is 0, or a device mapper table does not pass them on); use zero",
			pool_name(pool));
	return 0;
}

int csi_params_check_pool(
	const struct csi_params *params, const struct pool *pool, bool raw, struct err *err)
{
	int r = pool_check_ready(pool, err);
	if (r < 0)
		return r;
	const struct fs_features *features = pool_features(pool);
	if (params->thick && (features->nocow_lies || !features->fallocate))
		return err_set(err, ERR_INVALID,
			"parameters: provisioning thick cannot be had in pool %s, whose file system %s",
			pool_name(pool),
			features->nocow_lies ? "copies on write" : "has no fallocate");
	r = csi_params_check_erase(params->erase, pool, err);
	if (r < 0)
		return r;
	if (params->block_size != 0 && features->direct_io &&
		params->block_size < features->dio_align)
		return err_set(err, ERR_INVALID,
			"parameters: blockSize %u is less than the disk of pool %s takes, %u",
			params->block_size, pool_name(pool), features->dio_align);
	return backend_check(params->device, raw, err);
}

/* ---- what a volume or snapshot is made for ---- */

/* As Kubernetes has names (RFC 1123): lower case, digits, '-' and, not in a namespace's, '.'. */
static bool is_kubernetes_name(const char *s, size_t max, bool dots)
{
	size_t len = strlen(s);
	if (len == 0 || len > max)
		return false;
	for (size_t i = 0; i < len; i++) {
		bool alnum = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9');
		bool inside = i > 0 && i + 1 < len;
		if (!alnum && !(inside && (s[i] == '-' || (dots && s[i] == '.'))))
			return false;
	}
	return true;
}

static const char *others_value(
	Csi__V1__StringPair **pairs, size_t n, const char *kind, const char *what)
{
	char key[64];
	snprintf(key, sizeof(key), OTHERS_PREFIX "%s/%s", kind, what);
	for (size_t i = 0; i < n; i++)
		if (strcmp(csi_str(pairs[i]->key), key) == 0)
			return csi_str(pairs[i]->value);
	return "";
}

const char *csi_params_claim(
	struct arena *arena, Csi__V1__StringPair **pairs, size_t n, const char *kind)
{
	enum { NAMESPACE_MAX = 63, NAME_MAX_BYTES = RECORD_CLAIM_MAX - NAMESPACE_MAX - 1 };
	const char *namespace = others_value(pairs, n, kind, "namespace");
	const char *name = others_value(pairs, n, kind, "name");
	const char *claim = NULL;
	if (is_kubernetes_name(namespace, NAMESPACE_MAX, false) &&
		is_kubernetes_name(name, NAME_MAX_BYTES, true))
		claim = arena_printf(arena, "%s/%s", namespace, name);
	return claim != NULL ? claim : "";
}
