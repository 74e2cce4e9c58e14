// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// In a cluster a node's pod is one container with one process, without a token, and its account may do nothing.
func TestNodeHasNoRights(t *testing.T) {
	for name, values := range variants {
		if strings.HasPrefix(name, nodeMode) {
			continue
		}
		found := objects(t, values...)
		for _, set := range all[*appsv1.DaemonSet](found) {
			pod := set.Spec.Template.Spec
			if token := pod.AutomountServiceAccountToken; token == nil || *token {
				t.Errorf("%s: %s has a token", name, set.Name)
			}
			if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 {
				t.Errorf("%s: %s has %d containers", name, set.Name, len(pod.Containers)+len(pod.InitContainers))
			}
			account := pod.ServiceAccountName
			if rights := granted(found, account); len(rights) != 0 {
				t.Errorf("%s: %s may %v", name, account, rights)
			}
			for _, binding := range all[*rbacv1.ClusterRoleBinding](found) {
				if slices.ContainsFunc(binding.Subjects, func(subject rbacv1.Subject) bool { return subject.Name == account }) {
					t.Errorf("%s: %s binds %s", name, binding.Name, account)
				}
			}
			for _, binding := range all[*rbacv1.RoleBinding](found) {
				if slices.ContainsFunc(binding.Subjects, func(subject rbacv1.Subject) bool { return subject.Name == account }) {
					t.Errorf("%s: %s binds %s", name, binding.Name, account)
				}
			}
		}
	}
}

// Every node joins every replica, by the name and port that the replica has.
func TestNodesFindControllers(t *testing.T) {
	for _, variant := range []string{"as it is", "one replica, IPv6", "zones", "two pools elsewhere"} {
		found := objects(t, variants[variant]...)
		set := only[*appsv1.StatefulSet](t, found)
		service := only[*corev1.Service](t, found)
		if service.Spec.ClusterIP != corev1.ClusterIPNone || !service.Spec.PublishNotReadyAddresses || service.Name != set.Spec.ServiceName {
			t.Errorf("%s: the service %s is %+v", variant, service.Name, service.Spec)
		}
		for key, value := range service.Spec.Selector {
			if set.Spec.Template.Labels[key] != value {
				t.Errorf("%s: the service wants %s=%s", variant, key, value)
			}
		}
		controller := containerOf(t, set.Spec.Template.Spec, "ringvol")
		_, port, _ := cutLast(argument(controller, "--listen="), ":")
		var wanted []string
		for i := range *set.Spec.Replicas {
			wanted = append(wanted, fmt.Sprintf("%s-%d.%s.storage.svc:%s", set.Name, i, service.Name, port))
		}
		if got := service.Spec.Ports[0]; fmt.Sprint(got.Port) != port || got.TargetPort.StrVal != controller.Ports[1].Name ||
			fmt.Sprint(controller.Ports[1].ContainerPort) != port {
			t.Errorf("%s: the service has %+v, the container %+v", variant, got, controller.Ports)
		}
		for _, nodes := range all[*appsv1.DaemonSet](found) {
			if nodes.Labels["app.kubernetes.io/component"] != "node" {
				continue
			}
			node := containerOf(t, nodes.Spec.Template.Spec, "ringvol")
			named := strings.Split(environment(node, "RINGVOL_CONTROLLERS"), ";")
			if !slices.Equal(named, wanted) {
				t.Errorf("%s: %s joins %q, not %q", variant, nodes.Name, named, wanted)
			}
			advertised := environment(node, "RINGVOL_ADVERTISE")
			if host, at, _ := cutLast(advertised, ":"); at != port || strings.HasPrefix(argument(node, "--listen="), "[") != (host == "[$(POD_IP)]") {
				t.Errorf("%s: %s is reached at %s", variant, nodes.Name, advertised)
			}
		}
	}
}

func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

// certificate is a Secret's leaf, verified by the Secret's own CA with the Secret's own key.
func certificate(t *testing.T, secret *corev1.Secret) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(secret.Data["ca.crt"]) {
		t.Fatal("no CA")
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Errorf("%s: %v", secret.Name, err)
		}
	}
	return leaf
}

// What helm makes: a certificate of the controllers and one of the nodes, of one CA whose key nobody has.
func TestGeneratedCertificates(t *testing.T) {
	secrets := map[string]*corev1.Secret{}
	for _, secret := range all[*corev1.Secret](objects(t)) {
		secrets[secret.Name] = secret
	}
	for name, identity := range map[string]string{"ringvol-controller-tls": "ringvol://controller", "ringvol-node-tls": "ringvol://node/*"} {
		secret := secrets[name]
		if secret == nil {
			t.Fatalf("no secret %s", name)
		}
		leaf := certificate(t, secret)
		if !slices.Equal(leaf.DNSNames, []string{identity}) || len(leaf.URIs) != 0 || leaf.IsCA {
			t.Errorf("%s is %q", name, leaf.DNSNames)
		}
		if rest, more := pem.Decode(secret.Data["ca.crt"]); rest == nil || len(bytes.TrimSpace(more)) != 0 || len(secret.Data) != 3 {
			t.Errorf("%s holds more than a CA's certificate", name)
		}
	}
	if !bytes.Equal(secrets["ringvol-controller-tls"].Data["ca.crt"], secrets["ringvol-node-tls"].Data["ca.crt"]) {
		t.Error("nodes and controllers trust different authorities")
	}
	if bytes.Equal(secrets["ringvol-controller-tls"].Data["tls.key"], secrets["ringvol-node-tls"].Data["tls.key"]) {
		t.Error("nodes have the controllers' key")
	}
	for _, values := range [][]string{{"mode=node"}, inCluster["cert-manager"], inCluster["own certificates"], inCluster["certificate of each node"]} {
		if made := all[*corev1.Secret](objects(t, values...)); len(made) != 0 {
			t.Errorf("%q: a secret %s is made", values, made[0].Name)
		}
	}
}

func TestCertManager(t *testing.T) {
	for variant, issuer := range map[string]string{"cert-manager": "ringvol-ca", "cert-manager's other": "corp"} {
		found := objects(t, variants[variant]...)
		uris := map[string]string{}
		for _, made := range all[*certmanagerv1.Certificate](found) {
			if made.Spec.IsCA {
				continue
			}
			if made.Spec.IssuerRef.Name != issuer || len(made.Spec.URIs) != 1 {
				t.Errorf("%s: %s: %+v", variant, made.Name, made.Spec)
			}
			uris[made.Spec.SecretName] = made.Spec.URIs[0]
		}
		for component, uri := range map[string]string{"controller": "ringvol://controller", "node": "ringvol://node/*"} {
			if secret := tlsOf(t, pods(found)[component]).Secret; secret == nil || uris[secret.SecretName] != uri {
				t.Errorf("%s: %s has no certificate of %s: %+v %v", variant, component, uri, secret, uris)
			}
		}
	}
}

func tlsOf(t *testing.T, pod corev1.PodSpec) corev1.VolumeSource {
	t.Helper()
	for _, volume := range pod.Volumes {
		if volume.Name == "tls" {
			return volume.VolumeSource
		}
	}
	t.Fatal("no volume tls")
	return corev1.VolumeSource{}
}

// A node's certificate from its disk, and a group's from a Secret that no other node can read.
func TestCertificateOfEachNode(t *testing.T) {
	for _, set := range all[*appsv1.DaemonSet](objects(t, inCluster["certificate of each node"]...)) {
		from := tlsOf(t, set.Spec.Template.Spec)
		switch set.Name {
		case "ringvol-node":
			if from.HostPath == nil || from.HostPath.Path != "/etc/ringvol/tls" || *from.HostPath.Type != corev1.HostPathDirectory {
				t.Errorf("%+v", from)
			}
		case "ringvol-node-special":
			if from.Secret == nil || from.Secret.SecretName != "special" {
				t.Errorf("%+v", from)
			}
		}
	}
}

// What the schema cannot say.
func TestChartRefuses(t *testing.T) {
	for _, c := range []struct{ values, says string }{
		{"tls.existingSecret.controller=c", "one CA signs for controllers and nodes"},
		{"tls.existingSecret.node=n", "one CA signs for controllers and nodes"},
		{"tls.nodeHostPath=/etc/x", "one CA signs for controllers and nodes"},
		{"tls.certManager.enabled=true,tls.existingSecret.controller=c,tls.existingSecret.node=n", "exclude each other"},
		{"mode=node,attach.enabled=true", "needs mode: controller: an attacher takes every VolumeAttachment"},
		{"attach.remote.enabled=true", "goes with attach.enabled"},
		{"attach.enabled=true,storageClasses[0].name=a,storageClasses[0].parameters.attach=remote", "needs attach.remote.enabled"},
		{"attach.ending=true", "goes with attach.enabled"},
		{"mode=node,storageClasses[0].name=a,storageClasses[0].bindingMode=Immediate", "needs mode: controller"},
		{"storageClasses[0].name=a,storageClasses[0].parameters.encryption=luks2", "node-stage-secret-name"},
		{"attach.enabled=true,attach.remote.enabled=true,storageClasses[0].name=a,storageClasses[0].parameters.attach=remote," +
			"storageClasses[0].parameters.encryption=luks2," +
			"storageClasses[0].parameters.csi\\.storage\\.k8s\\.io/node-stage-secret-name=k," +
			"storageClasses[0].parameters.csi\\.storage\\.k8s\\.io/node-stage-secret-namespace=n", "controller-publish-secret-name"},
		{"nodeGroups[0].name=a,nodeGroups[0].nodeSelector.a=b,node.affinity.nodeAffinity.x=y", "exclude each other"},
		{"nodeGroups[0].name=a,nodeGroups[0].nodeSelector.a=b,nodeGroups[1].name=a,nodeGroups[1].nodeSelector.a=c", "twice"},
	} {
		if _, err := render(t, c.values); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.values, err)
		}
	}
}

// A node has one DaemonSet, and the group's values go before those of all.
func TestNodeGroups(t *testing.T) {
	wanted := map[string][]string{
		"ringvol-node":        {"--topology=rack=r1"},
		"ringvol-node-zone-a": {"--topology=rack=r1", "--topology=zone=a"},
		"ringvol-node-zone-b": {"--topology=rack=r7", "--topology=zone=b"},
	}
	for _, variant := range []string{"zones", nodeMode + "zones"} {
		sets := all[*appsv1.DaemonSet](objects(t, variants[variant]...))
		if len(sets) != len(wanted) {
			t.Errorf("%d DaemonSets", len(sets))
		}
		for _, set := range sets {
			var said []string
			for _, arg := range containerOf(t, set.Spec.Template.Spec, "ringvol").Args {
				if strings.HasPrefix(arg, "--topology=") {
					said = append(said, arg)
				}
			}
			if want := append(slices.Clone(wanted[set.Name]), "--topology=topology.kubernetes.io/region=$(TOPOLOGY_0)"); !slices.Equal(said, want) {
				t.Errorf("%s: %s says %q", variant, set.Name, said)
			}
			group := set.Spec.Selector.MatchLabels["ringvol.dev/group"]
			selected, affinity := set.Spec.Template.Spec.NodeSelector["zone"], set.Spec.Template.Spec.Affinity
			if group != "" {
				if "zone-"+selected != group || affinity != nil || set.Spec.Template.Labels["ringvol.dev/group"] != group {
					t.Errorf("%s: %s: selects %q, affinity %v", variant, set.Name, selected, affinity)
				}
				continue
			}
			terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			var not []string
			for _, expression := range terms[0].MatchExpressions {
				if expression.Operator == corev1.NodeSelectorOpNotIn {
					not = append(not, expression.Key+"="+strings.Join(expression.Values, ","))
				}
			}
			if len(terms) != 1 || !slices.Equal(not, []string{"zone=a", "zone=b"}) {
				t.Errorf("%s: %s leaves out %q of %d terms", variant, set.Name, not, len(terms))
			}
		}
	}
}

// What other objects and volumes call by its name has the same name and the same fixed fields in both modes, so that an
// installation can be moved from one to the other.
func TestModesCanBeChanged(t *testing.T) {
	for _, variant := range []string{"everything", "two pools elsewhere", "zones"} {
		cluster, node := objects(t, variants[variant]...), objects(t, variants[nodeMode+variant]...)
		for what, fixed := range map[string]func([]runtime.Object) []string{
			"CSIDriver": func(from []runtime.Object) []string {
				driver := only[*storagev1.CSIDriver](t, from)
				spec, err := json.Marshal(driver.Spec)
				if err != nil {
					t.Fatal(err)
				}
				return []string{driver.Name, string(spec)}
			},
			"StorageClass": func(from []runtime.Object) []string {
				var said []string
				for _, class := range all[*storagev1.StorageClass](from) {
					said = append(said, fmt.Sprint(class.Name, class.Provisioner, class.Parameters, *class.VolumeBindingMode, *class.ReclaimPolicy))
				}
				return said
			},
			"DaemonSet": func(from []runtime.Object) []string {
				var said []string
				for _, set := range all[*appsv1.DaemonSet](from) {
					driver := set.Spec.Template.Spec.Containers[0]
					said = append(said, fmt.Sprint(set.Name, set.Spec.Selector.MatchLabels, environment(driver, "RINGVOL_POOLS"),
						environment(driver, "CSI_ENDPOINT"), argument(driver, "--node-id="), argument(driver, "--driver-name=")))
				}
				return said
			},
		} {
			if is, was := fixed(cluster), fixed(node); len(is) == 0 || !slices.Equal(is, was) {
				t.Errorf("%s: %s:\n%q\n%q", variant, what, is, was)
			}
		}
	}
}

// The driver is let go of for as long as it drains, in every kind of pod.
func TestControllersTakeTurns(t *testing.T) {
	set := only[*appsv1.StatefulSet](t, objects(t, variants["everything"]...))
	if *set.Spec.Replicas != 2 || set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement ||
		*set.Spec.Template.Spec.TerminationGracePeriodSeconds < 11 {
		t.Errorf("%+v", set.Spec)
	}
	for _, container := range set.Spec.Template.Spec.Containers {
		if container.Name != "ringvol" && !slices.Contains(container.Args, "--leader-election") {
			t.Errorf("%s of all replicas work at once", container.Name)
		}
		if slices.Contains(container.Args, "--node-deployment") {
			t.Errorf("%s takes itself for a node's", container.Name)
		}
	}
}

// freePort is one that nobody listened on a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// ringvol takes the certificates that helm makes for what they are to be, though it can make no URI names.
func TestGeneratedCertificatesAreTaken(t *testing.T) {
	ringvol := os.Getenv("RINGVOL_BIN")
	if ringvol == "" {
		t.Skip("RINGVOL_BIN names no ringvol")
	}
	dir, secrets := t.TempDir(), map[string]*corev1.Secret{}
	for _, secret := range all[*corev1.Secret](objects(t)) {
		secrets[secret.Name] = secret
	}
	for name, data := range secrets["ringvol-controller-tls"].Data {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := freePort(t)
	cmd := exec.Command(ringvol, "controller", "--endpoint=unix://"+dir+"/csi.sock", "--listen="+address, "--http=off",
		"--tls-cert="+dir+"/tls.crt", "--tls-key="+dir+"/tls.key", "--tls-ca="+dir+"/ca.crt")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if !strings.Contains(said.String(), "identity=ringvol://controller") {
			t.Errorf("the controller does not know who it is:\n%s", said.String())
		}
	}()
	pair, err := tls.X509KeyPair(secrets["ringvol-node-tls"].Data["tls.crt"], secrets["ringvol-node-tls"].Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	// In TLS 1.3 a client learns of a refusal when it reads: what HTTP/2 begins with says that there is none.
	greeting := func(certificates ...tls.Certificate) error {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: certificates})
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
			return err
		}
		_, err = io.ReadFull(conn, make([]byte, 9))
		return err
	}
	until := time.Now().Add(20 * time.Second)
	for err = greeting(pair); err != nil && time.Now().Before(until); err = greeting(pair) {
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("a node with helm's certificate: %v", err)
	}
	if greeting() == nil {
		t.Error("somebody without a certificate was let in")
	}
}
