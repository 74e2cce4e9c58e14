// SPDX-License-Identifier: Apache-2.0
package ublk

import (
	"fmt"
	"os"
	"testing"
)

// The test program is also a client for scripts (bench/ublk/guest.sh), where there is no driver:
//
//	ublk.test attach|detach|list SOCKET [IMAGE]
func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1][0] == '-' {
		os.Exit(m.Run())
	}
	if err := command(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(verb, socket string, args []string) error {
	c, err := dial(socket)
	if err != nil {
		return err
	}
	defer c.close()
	all, err := c.list()
	if err != nil {
		return err
	}
	if verb == "list" {
		for i := range all {
			d := &all[i]
			fmt.Println(d.node(), text(d.Tag[:]), "state", d.State, "flags", d.Flags, "recoveries",
				d.Recoveries, "reads", d.Reads, "writes", d.Writes, "errors", d.Errors, text(d.Why[:]))
		}
		return nil
	}
	v := &volume{path: args[0]}
	r, err := v.request(0)
	if err != nil {
		return err
	}
	v.tag = fmt.Sprintf("ringvol:bench:%x", r.ImageIno)
	if verb == "attach" {
		d, err := c.attach(v)
		if err == nil {
			fmt.Println(d.node())
		}
		return err
	}
	for i := range all {
		if text(all[i].Tag[:]) == v.tag {
			return c.detach(v, &all[i])
		}
	}
	return nil
}
