/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions are what clients see with `varlinkctl introspect`. Names, types and order are
 * systemd's (its src/shared/varlink-io.systemd.StorageProvider.c). */
#include "provider/interface.h"

#include <string.h>

static const char varlink_text[] =
	"# What every varlink service has\n"
	"interface org.varlink.service\n"
	"\n"
	"method GetInfo() -> (\n"
	"\tvendor: string,\n"
	"\tproduct: string,\n"
	"\tversion: string,\n"
	"\turl: string,\n"
	"\tinterfaces: []string\n"
	")\n"
	"\n"
	"method GetInterfaceDescription(interface: string) -> (description: string)\n"
	"\n"
	"error InterfaceNotFound(interface: string)\n"
	"error MethodNotFound(method: string)\n"
	"error MethodNotImplemented(method: string)\n"
	"error InvalidParameter(parameter: string)\n"
	"error PermissionDenied()\n"
	"error ExpectedMore()\n";

static const char provider_text[] =
	"# Volumes of ringvol's pools\n"
	"interface io.systemd.StorageProvider\n"
	"\n"
	"# Block devices, regular files (there are none here), file systems\n"
	"type VolumeType (blk, reg, dir)\n"
	"\n"
	"# any: open, or create where it is missing; new: create; open: open\n"
	"type CreateMode (any, new, open)\n"
	"\n"
	"# Hands a volume over as a descriptor: of a directory it is a mount that is nowhere yet\n"
	"method Acquire(\n"
	"\tname: string,\n"
	"\tcreateMode: ?CreateMode,\n"
	"\ttemplate: ?string,\n"
	"\treadOnly: ?bool,\n"
	"\trequestAs: ?VolumeType,\n"
	"\tcreateSizeBytes: ?int,\n"
	"\tallowInteractiveAuthentication: ?bool\n"
	") -> (\n"
	"\tfileDescriptorIndex: int,\n"
	"\ttype: VolumeType,\n"
	"\treadOnly: bool,\n"
	"\tbaseUID: ?int,\n"
	"\tbaseGID: ?int\n"
	")\n"
	"\n"
	"# Lists volumes; needs the flag 'more'. matchName: a shell's pattern\n"
	"method ListVolumes(matchName: ?string) -> (\n"
	"\tname: string,\n"
	"\taliases: ?[]string,\n"
	"\ttype: VolumeType,\n"
	"\treadOnly: ?bool,\n"
	"\tsizeBytes: ?int,\n"
	"\tusedBytes: ?int\n"
	")\n"
	"\n"
	"# Lists file systems and golden images that a volume may begin as; needs the flag 'more'\n"
	"method ListTemplates(matchName: ?string) -> (\n"
	"\tname: string,\n"
	"\ttype: VolumeType\n"
	")\n"
	"\n"
	"error NoSuchVolume()\n"
	"error VolumeExists()\n"
	"error NoSuchTemplate()\n"
	"error TypeNotSupported()\n"
	"error WrongType()\n"
	"error CreateNotSupported()\n"
	"error CreateSizeRequired()\n"
	"error ReadOnlyVolume()\n"
	"error BadTemplate()\n";

const char *interface_description(const char *name)
{
	if (strcmp(name, VARLINK_INTERFACE) == 0)
		return varlink_text;
	return strcmp(name, PROVIDER_INTERFACE) == 0 ? provider_text : NULL;
}

json_t *interface_info(void)
{
	return json_pack("{s:s,s:s,s:s,s:s,s:[s,s]}", "vendor", "ringvol", "product", "ringvol",
		"version", RINGVOL_VERSION, "url", "", "interfaces", VARLINK_INTERFACE,
		PROVIDER_INTERFACE);
}
