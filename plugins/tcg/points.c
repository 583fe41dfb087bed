/*
 * Parses the points that timevisord wants. Every field is checked: a wrong index would read far
 * outside of any table.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include <string.h>

#include "introspect.h"

static bool good_read(const struct read *read, unsigned before, unsigned *data, const struct read *all)
{
	if (read->zero || read->length == 0 || read->length > MAX_DATA - *data)
		return false;
	*data += read->length;
	switch (read->base) {
	case REGISTER:
		return read->index < REGISTERS;
	case VALUE:
		return read->index < REGISTERS && read->length == 8;
	case EARLIER:
		/* A pointer from an earlier read, of 64 or 32 bits. */
		return read->index < before && (all[read->index].length == 8 || all[read->index].length == 4);
	case ABSOLUTE:
		return !read->index;
	}
	return false;
}

const char *parse_points(const uint8_t *payload, size_t length, struct points *out)
{
	uint16_t count;
	size_t at = 8;

	if (length < 8)
		return "too short";
	memcpy(&out->generation, payload, 4);
	memcpy(&count, payload + 4, 2);
	if (count > MAX_POINTS)
		return "too many points";
	for (unsigned n = 0; n < count; n++) {
		struct point *point = &out->all[n];
		unsigned data = 0;

		if (length - at < sizeof(point->head))
			return "too short";
		memcpy(&point->head, payload + at, sizeof(point->head));
		at += sizeof(point->head);
		out->low |= !(point->head.address >> 63);
		if (point->head.reads > MAX_READS || point->head.expected_len > 8)
			return "too many reads";
		if (point->head.filter != 0xff && point->head.filter >= point->head.reads)
			return "a filter without its read";
		for (unsigned r = 0; r < point->head.reads; r++) {
			if (length - at < sizeof(struct read))
				return "too short";
			memcpy(&point->reads[r], payload + at, sizeof(struct read));
			at += sizeof(struct read);
			if (!good_read(&point->reads[r], r, &data, point->reads))
				return "a read that cannot be";
		}
		if (point->head.filter != 0xff && point->reads[point->head.filter].length > 8)
			return "a filter of more than 8 bytes";
	}
	if (at != length)
		return "too long";
	out->count = count;
	return NULL;
}
