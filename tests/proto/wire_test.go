// SPDX-License-Identifier: Apache-2.0

package proto

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// nothing resolves no extension, so that all of them stay unknown fields.
type nothing struct{}

func (nothing) FindExtensionByName(protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

func (nothing) FindExtensionByNumber(protoreflect.FullName, protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

// consume takes one field off: its number, its raw value, and its length.
func consume(raw []byte) (protoreflect.FieldNumber, []byte, int) {
	number, kind, tag := protowire.ConsumeTag(raw)
	if tag < 0 {
		return 0, nil, -1
	}
	value := protowire.ConsumeFieldValue(number, kind, raw[tag:])
	if value < 0 {
		return 0, nil, -1
	}
	return number, raw[tag : tag+value], tag + value
}

// resolver finds what a file imports.
func resolver(file protoreflect.FileDescriptor) *protoregistry.Files {
	files := new(protoregistry.Files)
	for i := range file.Imports().Len() {
		_ = files.RegisterFile(file.Imports().Get(i).FileDescriptor)
	}
	return files
}
