/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the data process (`ringvol ublkd`) reads: the state files that the process before it left,
 * and packets on its socket. The input is a program: what the kernel says to each control command,
 * or that it says nothing yet; files, damaged or not; then, after a start, packets raw and well
 * formed, with and without descriptors, over two connections that come and go.
 */
#include "ublkd_world.h"

#include "base/fd.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

enum {
	FILES_MAX = 4,
	OPS_MAX = 24,
	DESCRIPTORS_SEEN = 256,
	PACKET_MAX = sizeof(struct ublkd_request) + 64,
};

static void pick_text(struct fuzz *f, char *ret, size_t size)
{
	static const char *const texts[] = {"", "ringvol:0:1", "ringvol:0:2", "ringvol:", "other",
		"/", "relative", "/dev/null"};
	unsigned choice = fuzz_below(f, 16);
	if (choice < 8) {
		snprintf(ret, size, "%s", texts[choice]);
	} else if (choice < 10) {
		snprintf(ret, size, "%s", image_path[choice % IMAGES]);
	} else {
		struct fuzz part = fuzz_take(f, choice * 8 < size ? choice * 8 : size);
		memcpy(ret, part.data, part.len);
	}
}

/* One value that makes sense most of the time. */
static uint32_t pick(struct fuzz *f, const uint32_t *usual, unsigned count)
{
	unsigned choice = fuzz_below(f, count + 1);
	return choice < count ? usual[choice] : fuzz_u32(f);
}

static void pick_image(struct fuzz *f, uint64_t *dev, uint64_t *ino)
{
	struct stat st = {0};
	must(stat(image_path[fuzz_below(f, IMAGES)], &st) == 0);
	*dev = st.st_dev;
	*ino = fuzz_below(f, 8) == 0 ? fuzz_u32(f) : st.st_ino;
}

static void build_record(struct fuzz *f, struct ublk_record *r)
{
	*r = (struct ublk_record){
		.phase = pick(f, (uint32_t[]){1, 2, 3, 2}, 4),
		.dev_id = FIRST_ID + fuzz_below(f, IDS),
		.flags = pick(f, (uint32_t[]){0, 1, 2, 4}, 4),
		.block_size = pick(f, (uint32_t[]){512, 4096}, 2),
		.queues = (uint16_t)pick(f, (uint32_t[]){1, 2, 16}, 3),
		.depth = (uint16_t)pick(f, (uint32_t[]){8, 64, 256}, 3),
	};
	pick_image(f, &r->image_dev, &r->image_ino);
	pick_text(f, r->tag, sizeof(r->tag));
	pick_text(f, r->path, sizeof(r->path));
}

static void leave_file(struct world *w, struct fuzz *f)
{
	struct ublk_record r;
	build_record(f, &r);
	must(ublk_state_write(w->state_dir, &r) == 0);
	unsigned damage = fuzz_below(f, 4);
	if (damage == 3)
		return;
	char name[24];
	snprintf(name, sizeof(name), "dev-%u", r.dev_id);
	_cleanup_fd_ int fd = openat(w->state_dir, name, O_WRONLY | O_CLOEXEC);
	must(fd >= 0);
	struct fuzz part = fuzz_take(f, damage * 16);
	must(pwrite(fd, part.data, part.len, fuzz_byte(f)) == (ssize_t)part.len);
	if (damage == 2)
		must(ftruncate(fd, (off_t)fuzz_byte(f) * 32) == 0);
}

static size_t build_request(struct world *w, struct fuzz *f, struct ublkd_request *r)
{
	*r = (struct ublkd_request){
		.head = {.magic = UBLKD_MAGIC,
			.version = UBLKD_VERSION,
			.type = (uint16_t)pick(f, (uint32_t[]){1, 2, 3, 4, 5, 2, 2, 6}, 8),
			.id = fuzz_byte(f)},
		.flags = pick(f, (uint32_t[]){0, 1, 2, 3}, 4),
		.block_size = pick(f, (uint32_t[]){512, 4096, 512}, 3),
		.queues = (uint16_t)pick(f, (uint32_t[]){0, 1, 2}, 3),
		.depth = (uint16_t)pick(f, (uint32_t[]){0, 8, 256}, 3),
		.dev_id = FIRST_ID + fuzz_below(f, IDS * 2),
	};
	pick_image(f, &r->image_dev, &r->image_ino);
	pick_text(f, r->tag, sizeof(r->tag));
	pick_text(f, r->path, sizeof(r->path));
	if (r->head.type == UBLKD_LIMIT)
		r->limits = (struct io_limits){
			pick(f, (uint32_t[]){0, 1, 1000}, 3), 0, 0, pick(f, (uint32_t[]){0, 1}, 2)};
	/* As a driver names a device it was told of. */
	const struct ublk_dev *dev = ublk_devs_next(w->devs, r->dev_id);
	if (fuzz_below(f, 2) == 0 && dev != NULL) {
		memcpy(r->tag, dev->record.tag, sizeof(r->tag));
		r->image_dev = dev->record.image_dev;
		r->image_ino = dev->record.image_ino;
		r->dev_id = dev->record.dev_id;
	}
	static const size_t lengths[] = {sizeof(*r), sizeof(*r), sizeof(*r) - 4000, 112, 16, 15};
	unsigned choice = fuzz_below(f, 8);
	return choice < 6 ? lengths[choice] : choice == 6 ? fuzz_byte(f) * 8u : PACKET_MAX;
}

static void send_packet(struct world *w, struct fuzz *f, struct client *c, bool raw)
{
	union {
		struct ublkd_request request;
		uint8_t bytes[PACKET_MAX];
	} packet = {0};
	size_t len;
	if (raw) {
		struct fuzz part = fuzz_take(f, fuzz_byte(f));
		memcpy(packet.bytes, part.data, len = part.len);
	} else {
		len = build_request(w, f, &packet.request);
	}
	int fds[8];
	unsigned shape = fuzz_byte(f), count = shape % 8 < 6 ? shape % 2 : shape % 8;
	for (unsigned i = 0; i < count; i++) {
		fds[i] = open(shape & 0x80 ? "/dev/null" : image_path[shape >> 3 & 1],
			(shape & 0x40 ? O_RDONLY : O_RDWR) | O_CLOEXEC);
		must(fds[i] >= 0);
	}
	(void)client_send(c, packet.bytes, len, fds, count);
	for (unsigned i = 0; i < count; i++)
		close(fds[i]);
}

static void one_op(struct world *w, struct fuzz *f)
{
	uint8_t b = fuzz_byte(f);
	struct client *c = &w->client[b >> 7];
	switch (b % 8) {
	case 0:
		kernel_answers(w);
		break;
	case 1:
		close(c->fd);
		client_open(c);
		break;
	case 2:
		world_settle(w);
		break;
	case 3:
		must(truncate(image_path[b >> 3 & 1], (off_t)fuzz_byte(f) << 12) == 0);
		break;
	default:
		send_packet(w, f, c, b % 8 == 4);
		break;
	}
}

/* Of the first numbers, which are given first. */
static unsigned open_descriptors(void)
{
	unsigned count = 0;
	for (int fd = 0; fd < DESCRIPTORS_SEEN; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct world world;
	struct world *w = &world;
	struct fuzz f = {data, len};
	if (w->reactor.ring == NULL)
		world_open(w);
	unsigned open_before = open_descriptors();
	w->answers = fuzz_take(&f, fuzz_below(&f, 64));
	for (unsigned i = 0; i < IMAGES; i++)
		must(truncate(image_path[i], 1 << 20) == 0);
	for (unsigned n = fuzz_below(&f, FILES_MAX + 1); n > 0; n--)
		leave_file(w, &f);
	world_start(w);
	for (unsigned i = 0; i < OPS_MAX && f.len > 0; i++)
		one_op(w, &f);
	world_end(w);
	must(open_descriptors() == open_before);
	return 0;
}
