# SPDX-License-Identifier: Apache-2.0
# Makes of a .proto file one for protoc-c that is the same on the wire (GNU sed -E):
# strings become bytes, as protobuf-c cuts strings at NUL and takes broken UTF-8 (both are looked
# at once, at the edge); maps, which it does not know, become what they are on the wire, repeated
# pairs; of google's well-known types the three used are spelled out; options are left behind.

/^extend /,/^}/d
/^import "google\//d
/^option /d
/^ *option \(.*\) = /d
s/ \[\(.*\]; *$/;/
s/^( *(repeated )?)string /\1bytes /
s/map<string, *string> /repeated StringPair /
s/google\.protobuf\.(BoolValue|Int64Value|Timestamp) /\1 /
/^package csi\.v1;/a\
message StringPair { bytes key = 1; bytes value = 2; }\
message BoolValue { bool value = 1; }\
message Int64Value { int64 value = 1; }\
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
