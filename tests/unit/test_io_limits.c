/* SPDX-License-Identifier: Apache-2.0 */
/* I/O limits: which pod a path names, where its cgroup is (in a directory that stands for the
 * node's hierarchy), what is written there, and the arithmetic of the data process's buckets. */
#include "backends/ublk/ublk_throttle.h"
#include "base/fd.h"
#include "node/cgroup.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define UID        "0f6b1c9a-7d3e-4c55-9a0b-1234567890ab"
#define UID_SLICE  "0f6b1c9a_7d3e_4c55_9a0b_1234567890ab"
#define STATIC_UID "0123456789abcdef0123456789abcdef"
#define KUBELET    "/var/lib/kubelet"
#define MS         UINT64_C(1000000)
#define SECOND     UINT64_C(1000000000)

/* ---- paths ---- */

static void names(const char *path, const char *uid)
{
	char found[CGROUP_POD_BYTES];
	cr_assert(cgroup_pod_of(path, found), "%s", path);
	cr_assert_str_eq(found, uid, "%s", path);
}

static void names_none(const char *path)
{
	char found[CGROUP_POD_BYTES];
	cr_expect_not(cgroup_pod_of(path, found), "%s", path);
}

Test(io_limits, pods_of_paths)
{
	names(KUBELET "/pods/" UID "/volumes/kubernetes.io~csi/pvc-1/mount", UID);
	names("/data/pods/kubelet/pods/" UID "/volumes/x", UID);
	names("/k/pods/" STATIC_UID "/volumes/x", STATIC_UID);
	names(KUBELET "/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-" UID "/" UID, UID);
	names(KUBELET "/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/" UID, UID);
	names_none(KUBELET "/plugins/kubernetes.io/csi/csi.ringvol.dev/" UID "/globalmount");
	names_none(KUBELET "/plugins/kubernetes.io/csi/volumeDevices/staging/pvc-" UID);
	names_none(KUBELET "/plugins/kubernetes.io/csi/volumeDevices/publish/" UID "/");
	names_none("/mnt/" UID);
	names_none("/pods/..");
	names_none("/pods/0F6B1C9A-7D3E-4C55-9A0B-1234567890AB/x");
	names_none("/pods/0f6b1c9a-7d3e-4c55-9a0b-1234567890abc/x");
	names_none("/pods/0f6b1c9a7-d3e-4c55-9a0b-1234567890ab/x");
	names_none("/pods/0f6b1c9a_7d3e_4c55_9a0b_1234567890ab/x");
	names_none("");
}

/* ---- cgroups ---- */

static char root[32];

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

static void setup(void)
{
	strcpy(root, "/tmp/ringvol-cgroup-XXXXXX");
	cr_assert_not_null(mkdtemp(root));
}

static void teardown(void)
{
	nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(cgroup, .init = setup, .fini = teardown);

static void put(const char *path, const char *text)
{
	char full[512];
	snprintf(full, sizeof(full), "%s/%s", root, path);
	for (char *at = strchr(full + strlen(root) + 1, '/'); at != NULL;
		at = strchr(at + 1, '/')) {
		*at = '\0';
		cr_assert(mkdir(full, 0755) == 0 || errno == EEXIST);
		*at = '/';
	}
	if (text == NULL)
		return;
	FILE *file = fopen(full, "w");
	cr_assert_not_null(file, "%s", full);
	fputs(text, file);
	fclose(file);
}

static int open_root(struct err *err)
{
	*err = (struct err){0};
	return cgroup_open_root(root, err);
}

Test(cgroup, a_hierarchy_that_can_limit)
{
	struct err err;
	cr_assert_lt(open_root(&err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(err.message, "is not the top of cgroup v2"), "%s", err.message);
	put("cgroup.controllers", "cpuset cpu rdma misc\n");
	cr_assert_lt(open_root(&err), 0);
	cr_expect_not_null(strstr(err.message, "no io controller"), "%s", err.message);
	put("cgroup.controllers", "cpuset cpu iox io\n");
	int fd = open_root(&err);
	cr_assert_geq(fd, 0, "%s", err.message);
	close(fd);
	put("cgroup.controllers", "io memory\n");
	fd = open_root(&err);
	cr_assert_geq(fd, 0, "%s", err.message);
	close(fd);
	cr_assert_lt(cgroup_open_root("/nonexistent/cgroup", &err), 0);
	cr_expect_not_null(strstr(err.message, "--cgroup-root"), "%s", err.message);
}

/* Each place that kubelet has a pod's cgroup at. */
Test(cgroup, where_pods_are)
{
	static const char *const places[] = {
		"kubepods.slice/kubepods-pod" UID_SLICE ".slice",
		"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_SLICE ".slice",
		"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" UID_SLICE
		".slice",
		"kubepods/pod" UID,
		"kubepods/burstable/pod" UID,
		"kubepods/besteffort/pod" UID,
		"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" UID_SLICE ".slice",
		"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" UID_SLICE
		".slice",
		"kubelet/kubepods/pod" UID,
		"kubelet/kubepods/besteffort/pod" UID,
	};
	int top = open(root, O_RDONLY | O_DIRECTORY);
	cr_assert_eq(cgroup_open_pod(top, UID), -ENOENT);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		char dir[512];
		struct stat found, made;
		snprintf(dir, sizeof(dir), "%s/", places[i]);
		put(dir, NULL);
		int fd = cgroup_open_pod(top, UID);
		cr_assert_geq(fd, 0, "%s: %d", places[i], fd);
		cr_assert_eq(fstat(fd, &found), 0);
		cr_assert_eq(fstatat(top, places[i], &made, 0), 0);
		cr_expect_eq(found.st_ino, made.st_ino, "%s", places[i]);
		cr_expect_eq(cgroup_open_pod(top, STATIC_UID), -ENOENT);
		close(fd);
		cr_assert_eq(unlinkat(top, places[i], AT_REMOVEDIR), 0);
	}
	close(top);
}

Test(cgroup, no_link_is_followed)
{
	char link[256];
	put("elsewhere/", NULL);
	put("kubepods/", NULL);
	snprintf(link, sizeof(link), "%s/kubepods/pod" UID, root);
	cr_assert_eq(symlink("../elsewhere", link), 0);
	int top = open(root, O_RDONLY | O_DIRECTORY);
	cr_expect_lt(cgroup_open_pod(top, UID), 0);
	close(top);
}

static const char *io_max(int pod)
{
	static char text[512];
	cr_assert_geq(fd_read_file(pod, "io.max", text, sizeof(text)), 0);
	return text;
}

Test(cgroup, lines)
{
	const struct io_limits limits = {.read_iops = 500, .write_bandwidth = 1 << 20}, none = {0};
	put("pod/", NULL);
	char path[64];
	snprintf(path, sizeof(path), "%s/pod", root);
	int pod = open(path, O_RDONLY | O_DIRECTORY);
	cr_assert_eq(cgroup_set_limits(pod, 7, 5, &limits), -EOPNOTSUPP);
	put("pod/io.max", "");
	cr_assert_eq(cgroup_set_limits(pod, 7, 5, &limits), 0);
	cr_expect_str_eq(io_max(pod), "7:5 rbps=max wbps=1048576 riops=500 wiops=max");
	cr_assert_eq(cgroup_set_limits(pod, 7, 5, &none), 0);
	cr_expect_str_eq(io_max(pod), "7:5 rbps=max wbps=max riops=max wiops=max");

	/* What says so already is not written again: here that would take the others away. */
	static const char several[] = "7:50 rbps=max wbps=max riops=9 wiops=max\n"
				      "7:5 rbps=max wbps=1048576 riops=500 wiops=max\n";
	put("pod/io.max", several);
	cr_assert_eq(cgroup_set_limits(pod, 7, 5, &limits), 0);
	cr_expect_str_eq(io_max(pod), several);
	cr_assert_eq(cgroup_set_limits(pod, 7, 6, &none), 0);
	cr_expect_str_eq(io_max(pod), several);
	cr_assert_eq(cgroup_set_limits(pod, 7, 50, &none), 0);
	cr_expect_str_eq(io_max(pod), "7:50 rbps=max wbps=max riops=max wiops=max");
	close(pod);
}

/* ---- buckets, with a clock of our own ---- */

static struct ublk_throttle throttle;

static void limit_to(const struct io_limits *limits, uint64_t now_ns)
{
	ublk_throttle_set(&throttle, limits, now_ns);
}

Test(throttle, operations_go_at_their_rate)
{
	uint64_t start = 1000 * SECOND;
	limit_to(&(struct io_limits){.write_iops = 1000}, start);
	cr_expect(ublk_throttle_limits(&throttle, true));
	cr_expect_not(ublk_throttle_limits(&throttle, false));
	for (unsigned i = 0; i < 10000; i++)
		cr_assert_eq(ublk_throttle_take(&throttle, true, 4096, start), start + i * MS);
	/* Reads are not limited. */
	cr_assert_eq(ublk_throttle_take(&throttle, false, 4096, start), 0);
}

Test(throttle, bytes_go_at_their_rate)
{
	uint64_t start = 5 * SECOND;
	limit_to(&(struct io_limits){.read_bandwidth = 1 << 20}, start);
	for (unsigned i = 0; i < 64; i++)
		cr_assert_eq(ublk_throttle_take(&throttle, false, 256 << 10, start),
			start + i * SECOND / 4);
	/* What carries no bytes does not wait for them. */
	cr_assert_eq(ublk_throttle_take(&throttle, false, 0, start), 0);
}

/* The slower of the two says when. */
Test(throttle, both)
{
	uint64_t start = SECOND;
	limit_to(&(struct io_limits){.write_iops = 100, .write_bandwidth = 1 << 20}, start);
	(void)ublk_throttle_take(&throttle, true, 512, start);
	cr_assert_eq(ublk_throttle_take(&throttle, true, 512 << 10, start), start + 10 * MS);
	cr_assert_eq(ublk_throttle_take(&throttle, true, 512, start),
		start + SECOND / 2 + 512 * SECOND / (1 << 20) + 1);
}

/* An idle volume keeps what it did not use for a moment, and no more. */
Test(throttle, a_burst_is_short)
{
	uint64_t start = SECOND, later = 100 * SECOND;
	unsigned at_once = 0;
	limit_to(&(struct io_limits){.read_iops = 1000}, start);
	while (ublk_throttle_take(&throttle, false, 512, later) <= later)
		at_once++;
	cr_assert_eq(at_once, UBLK_THROTTLE_BURST_MS + 1);
}

/* However it is divided among queues, and however fast: what is granted in a second is the rate. */
Test(throttle, rates_are_exact)
{
	static const uint64_t rates[] = {10, 333, 1000, 99999, 1000003, 10000000};
	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
		uint64_t start = 7777 * SECOND, last = 0, count = rates[i] < 5000 ? 5000 : rates[i];
		limit_to(&(struct io_limits){.read_iops = rates[i]}, start);
		for (uint64_t n = 0; n <= count; n++)
			last = ublk_throttle_take(&throttle, false, 512, start);
		double rate = (double)count * 1e9 / (double)(last - start);
		cr_assert_float_eq(rate, (double)rates[i], (double)rates[i] / 1000);
	}
}

Test(throttle, other_limits_begin_anew)
{
	uint64_t start = SECOND;
	limit_to(&(struct io_limits){.read_iops = 10}, start);
	for (unsigned i = 0; i < 100; i++)
		(void)ublk_throttle_take(&throttle, false, 512, start);
	uint32_t version = throttle.version;
	limit_to(&(struct io_limits){.read_iops = 1000}, start + MS);
	cr_expect_neq(throttle.version, version);
	cr_expect_eq(ublk_throttle_take(&throttle, false, 512, start + MS), start + MS);
	cr_expect_eq(ublk_throttle_take(&throttle, false, 512, start + MS), start + 2 * MS);
	limit_to(&(struct io_limits){0}, start + MS);
	cr_expect_not(ublk_throttle_limits(&throttle, false));
	cr_expect_eq(ublk_throttle_take(&throttle, false, 512, start + MS), 0);
}
