// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"os"
)

// Cable joins two network namespaces that nobody else is in. Its ends have the addresses Addr[0] and Addr[1]; In runs
// programs at one of them.
type Cable struct {
	Addr [2]string
	In   [2][]string
	name [2]string
}

// NewCable makes the namespaces and plugs the cable in.
func (r *Rig) NewCable() (*Cable, error) {
	c := &Cable{Addr: [2]string{"10.77.0.1", "10.77.0.2"}}
	r.Defer(func() error {
		for _, name := range c.name {
			if name != "" {
				_, _ = Run("ip", "netns", "del", name)
			}
		}
		return nil
	})
	for i := range c.name {
		name := fmt.Sprintf("ringvol-%d-%s-%d", os.Getpid(), randomHex(2), i)
		if _, err := Run("ip", "netns", "add", name); err != nil {
			return nil, err
		}
		c.name[i] = name
		c.In[i] = []string{"nsenter", "--net=/run/netns/" + name, "--"}
	}
	_, err := Run("ip", "-n", c.name[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", c.name[1])
	if err != nil {
		return nil, err
	}
	for i, name := range c.name {
		_, failed := Run("ip", "-n", name, "addr", "add", c.Addr[i]+"/24", "dev", "cable")
		err = errors.Join(err, failed)
	}
	return c, errors.Join(err, c.Plug())
}

// Pull takes the cable out: nothing arrives, and nobody is told.
func (c *Cable) Pull() error {
	_, err := Run("ip", "-n", c.name[0], "link", "set", "cable", "down")
	return err
}

// Plug puts it in again.
func (c *Cable) Plug() error {
	var errs []error
	for _, name := range c.name {
		for _, link := range []string{"lo", "cable"} {
			_, err := Run("ip", "-n", name, "link", "set", link, "up")
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
