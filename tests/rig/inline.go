// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Inline is an inline volume as kubelet has it: an id of kubelet's making, the pod that it is of, and attributes.
type Inline struct {
	ID         string
	Pod        string // its uid
	Attributes map[string]string
	Target     string

	driver *Driver
	client *Client
}

// Inline prepares one of a pod of namespace ci, and makes what kubelet makes for that pod; Publish makes the volume.
func (d *Driver) Inline(id, pod string, attributes map[string]string) (*Inline, error) {
	v := &Inline{ID: id, Pod: pod, Attributes: attributes, driver: d}
	v.Target = filepath.Join(v.PodDir(), "volumes/kubernetes.io~csi/scratch/mount")
	return v, v.PodComes()
}

// On returns the same volume as seen over another connection.
func (v *Inline) On(c *Client) *Inline {
	w := *v
	w.client = c
	return &w
}

// PodDir is kubelet's directory of the pod.
func (v *Inline) PodDir() string {
	return filepath.Join(v.driver.Kubelet, "pods", v.Pod)
}

// PodComes makes the pod's directory, PodGoes removes it, in which nothing may be mounted.
func (v *Inline) PodComes() error { return os.MkdirAll(filepath.Dir(v.Target), 0o750) }
func (v *Inline) PodGoes() error  { return os.RemoveAll(v.PodDir()) }

func (v *Inline) call() (*Client, context.Context, context.CancelFunc, error) {
	c, err := v.client, error(nil)
	if c == nil {
		c, err = v.driver.Client()
	}
	ctx, cancel := context.WithTimeout(context.Background(), CallTimeout)
	return c, ctx, cancel, err
}

// Publish is its NodePublishVolume.
func (v *Inline) Publish() error {
	c, ctx, cancel, err := v.call()
	defer cancel()
	if err != nil {
		return err
	}
	attributes := map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "build",
		"csi.storage.k8s.io/pod.namespace": "ci", "csi.storage.k8s.io/pod.uid": v.Pod,
		"csi.storage.k8s.io/serviceAccount.name": "default",
	}
	maps.Copy(attributes, v.Attributes)
	_, err = c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: v.ID, TargetPath: v.Target, VolumeCapability: MountCap(""), VolumeContext: attributes,
	})
	if err != nil {
		return fmt.Errorf("NodePublishVolume %s: %w", v.ID, err)
	}
	return nil
}

// Unpublish is its NodeUnpublishVolume.
func (v *Inline) Unpublish() error {
	c, ctx, cancel, err := v.call()
	defer cancel()
	if err != nil {
		return err
	}
	if _, err = c.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID, TargetPath: v.Target}); err != nil {
		return fmt.Errorf("NodeUnpublishVolume %s: %w", v.ID, err)
	}
	return nil
}
