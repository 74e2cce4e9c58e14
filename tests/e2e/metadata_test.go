// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ringvol.dev/tests/e2e/cluster"
)

// metadata is a backup program: what it asks the sidecar with.
type metadata struct {
	w        *world
	client   api.SnapshotMetadataClient
	audience string
}

// openMetadata finds the sidecar as a backup program does, by the driver's name. No kube-proxy runs here that would lead it on from the
// service's address, so it goes to a controller's pod; the name that the certificate has to have is the service's.
func (w *world) openMetadata(replica int) *metadata {
	w.t.Helper()
	told, err := node.Dynamic.Resource(schema.GroupVersionResource{Group: "cbt.storage.k8s.io", Version: "v1alpha1",
		Resource: "snapshotmetadataservices"}).Get(w.ctx(), cluster.Driver, metav1.GetOptions{})
	w.must("the driver's snapshot metadata service", err)
	text := func(field string) string {
		value, _, err := unstructured.NestedString(told.Object, "spec", field)
		w.must(field, err)
		return value
	}
	ca, err := base64.StdEncoding.DecodeString(text("caCert"))
	w.must("its CA", err)
	host, _, err := net.SplitHostPort(text("address"))
	w.must("its address", err)
	trust := x509.NewCertPool()
	if !trust.AppendCertsFromPEM(ca) {
		w.t.Fatalf("its CA is no certificate:\n%s", ca)
	}
	pods, err := node.ControllerPods()
	w.must("the controllers", err)
	conn, err := grpc.NewClient(net.JoinHostPort(pods[replica].Status.PodIP, "50051"),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: trust, ServerName: host})))
	w.must("a client", err)
	w.t.Cleanup(func() { conn.Close() })
	return &metadata{w: w, client: api.NewSnapshotMetadataClient(conn), audience: text("audience")}
}

// token is one of a service account for an audience.
func (w *world) token(account, audience string) string {
	w.t.Helper()
	answer, err := node.Client.CoreV1().ServiceAccounts(w.namespace).CreateToken(w.ctx(), account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}, metav1.CreateOptions{})
	w.must("a token of "+account, err)
	return answer.Status.Token
}

// backupAccount makes a service account that may read snapshots of the namespace.
func (w *world) backupAccount(name string) {
	w.t.Helper()
	_, err := node.Client.CoreV1().ServiceAccounts(w.namespace).Create(w.ctx(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	w.must("account "+name, err)
	_, err = node.Client.RbacV1().Roles(w.namespace).Create(w.ctx(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"snapshot.storage.k8s.io"}, Resources: []string{"volumesnapshots"},
			Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	w.must("its role", err)
	_, err = node.Client.RbacV1().RoleBindings(w.namespace).Create(w.ctx(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: w.namespace}}}, metav1.CreateOptions{})
	w.must("its binding", err)
}

// block is a range that the sidecar tells of.
type block struct{ offset, size int64 }

// allocated are the ranges of a snapshot that hold data.
func (m *metadata) allocated(token, snapshot string) ([]block, error) {
	ctx, cancel := context.WithTimeout(m.w.ctx(), time.Minute)
	defer cancel()
	stream, err := m.client.GetMetadataAllocated(ctx, &api.GetMetadataAllocatedRequest{SecurityToken: token,
		Namespace: m.w.namespace, SnapshotName: snapshot, MaxResults: 10})
	if err != nil {
		return nil, err
	}
	var found []block
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		for _, one := range answer.GetBlockMetadata() {
			found = append(found, block{one.GetByteOffset(), one.GetSizeBytes()})
		}
	}
}

// delta are the ranges in which a snapshot may differ from an earlier one.
func (m *metadata) delta(token, base, target string) ([]block, error) {
	ctx, cancel := context.WithTimeout(m.w.ctx(), time.Minute)
	defer cancel()
	stream, err := m.client.GetMetadataDelta(ctx, &api.GetMetadataDeltaRequest{SecurityToken: token,
		Namespace: m.w.namespace, BaseSnapshotId: m.w.handle(base), TargetSnapshotName: target})
	if err != nil {
		return nil, err
	}
	var found []block
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		for _, one := range answer.GetBlockMetadata() {
			found = append(found, block{one.GetByteOffset(), one.GetSizeBytes()})
		}
	}
}

// handle is the driver's id of a snapshot.
func (w *world) handle(snapshot string) string {
	w.t.Helper()
	found, err := w.snapshots().Get(w.ctx(), snapshot, metav1.GetOptions{})
	w.must("snapshot "+snapshot, err)
	name, _, _ := unstructured.NestedString(found.Object, "status", "boundVolumeSnapshotContentName")
	content, err := node.Dynamic.Resource(cluster.SnapshotContents).Get(w.ctx(), name, metav1.GetOptions{})
	w.must("its content", err)
	handle, _, _ := unstructured.NestedString(content.Object, "status", "snapshotHandle")
	return handle
}

// bytesOf is all that a snapshot holds, read from its image in the first node's pool.
func (w *world) bytesOf(snapshot string) []byte {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(node.Pool.Path, "snapshots", strings.Split(w.handle(snapshot), ".")[1]))
	w.must("the image of "+snapshot, err)
	return data
}

// covered checks that all that differs lies in the ranges, and how much more they have. The ranges are in order.
func covered(ranges []block, a, b []byte) (more int64, err error) {
	const piece = 4096
	at := 0
	for i := int64(0); i < int64(len(b)); i += piece {
		for at < len(ranges) && ranges[at].offset+ranges[at].size <= i {
			at++
		}
		told := at < len(ranges) && ranges[at].offset <= i
		differs := !bytes.Equal(a[i:i+piece], b[i:i+piece])
		if differs && !told {
			return 0, fmt.Errorf("the 4 KiB at %d differ and are not told of", i)
		}
		if told && !differs {
			more += piece
		}
	}
	return more, nil
}

// A backup program asks the real sidecar, with a token for its audience, which blocks to read: none that it needs is left out, and few are
// told of in vain. Who has no right to the snapshots is told nothing.
func TestSnapshotMetadata(t *testing.T) {
	needsController(t)
	const size = 64 * mebibyte
	w := newWorldBeside(t)
	w.claim("data", "ringvol", "64Mi", asBlock)
	w.pod("pod", device("data"))
	w.awaitPod("pod")
	w.run("pod", "put", dataDevice, "20000000", "first")
	w.snapshot("one", "data")
	w.run("pod", "put", dataDevice, "1000000", "second")
	w.snapshot("two", "data")
	w.backupAccount("backup")
	one, two := w.bytesOf("one"), w.bytesOf("two")
	if len(one) != size || len(two) != size || bytes.Equal(one, two) {
		t.Fatalf("the images have %d and %d bytes", len(one), len(two))
	}
	for replica := range 2 {
		m := w.openMetadata(replica)
		token := w.token("backup", m.audience)
		var ranges []block
		w.eventually("the allocated blocks", func() (err error) {
			ranges, err = m.allocated(token, "one")
			return err
		})
		more, err := covered(ranges, make([]byte, size), one)
		w.must("what is allocated", err)
		t.Logf("replica %d: %d ranges are allocated, %d bytes of zeros among them", replica, len(ranges), more)
		ranges, err = m.delta(token, "one", "two")
		w.must("what has changed", err)
		more, err = covered(ranges, one, two)
		w.must("what has changed", err)
		t.Logf("replica %d: %d ranges have changed, %d bytes of them have not", replica, len(ranges), more)
		if more > mebibyte {
			t.Errorf("%d bytes are told of in vain", more)
		}
		if again, err := m.delta(token, "two", "two"); err != nil || len(again) != 0 {
			t.Errorf("a snapshot differs from itself in %v (%v)", again, err)
		}
		for what, c := range map[string]struct {
			token string
			want  codes.Code
		}{
			"a token for another audience":         {w.token("backup", "somebody"), codes.Unauthenticated},
			"no token":                             {"", codes.InvalidArgument},
			"an account that may read no snapshot": {w.token("default", m.audience), codes.PermissionDenied},
		} {
			if _, err := m.allocated(c.token, "one"); status.Code(err) != c.want {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}
