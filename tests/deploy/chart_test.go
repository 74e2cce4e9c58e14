// SPDX-License-Identifier: Apache-2.0

// Package deploy tests what deploy/ has for Kubernetes: that the chart renders objects the API server's own types take,
// that its schema refuses what would not work, that real binaries take the flags in it, and that nobody is given
// more rights than the sidecars' own manifests ask for.
package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	top   = "../.."
	chart = top + "/deploy/helm/ringvol"

	someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// variants are combinations of values that all have to render to sound objects.
var variants = map[string][]string{
	"as it is":  nil,
	"snapshots": {"snapshots.enabled=true", "snapshots.class.default=true"},
	"ublk":      {"ublk.enabled=true", "snapshots.enabled=true"},
	"everything": {"ublk.enabled=true", "snapshots.enabled=true", "snapshotController.enabled=true",
		"monitoring.podMonitor.enabled=true", "monitoring.rules.enabled=true", "monitoring.dashboard.enabled=true",
		"storageClasses[0].name=fast", "storageClasses[0].default=true", "storageClasses[0].mountOptions[0]=noatime", "node.maxVolumes=500", "node.trimInterval=12h",
		"inline.enabled=true", "inline.namespaces[0]=ci", "inline.namespaces[1]=dev", "inline.sources[0]=root", "text:inline.iops=5000", "inline.bandwidth=100Mi",
		"volumeAttributesClasses[0].name=slow", "text:volumeAttributesClasses[0].parameters.iops=1000", "node.blockOnLoop=true",
		"imagePullSecrets[0].name=registry", "node.podLabels.team=storage", "node.podAnnotations.a=b"},
	"two pools elsewhere": {"kubeletDir=/data/kubelet", "driverName=local.example.org",
		"pools[0].name=fast", "pools[0].hostPath=/mnt/nvme", "pools[0].options=overcommit=2.5\\,reserve=0",
		"pools[1].name=slow", "pools[1].hostPath=/mnt/disks/0", "ublk.enabled=true",
		"storageClasses[0].name=slow", "storageClasses[0].parameters.pool=slow", "node.http=[::]:9808", "node.maxUnavailable=3"},
	"without classes": {"storageClasses=null", "node.cgroupRoot=", "node.tolerations=null", "image.tag=v9"},
	"guarded": {"networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring", "image.digest=" + someDigest,
		"sidecars.resizer.digest=" + someDigest, "ublk.enabled=true"},
	"open": {"networkPolicy.enabled=false", "sidecars.provisioner.digest="},
	"encrypted": {"storageClasses[0].name=encrypted", "storageClasses[0].parameters.encryption=luks2",
		"storageClasses[0].parameters.csi\\.storage\\.k8s\\.io/node-stage-secret-name=ringvol-key",
		"storageClasses[0].parameters.csi\\.storage\\.k8s\\.io/node-stage-secret-namespace=ringvol"},
	"zones": {"nodeGroups[0].name=zone-a", "nodeGroups[0].nodeSelector.zone=a", "nodeGroups[0].topology.zone=a",
		"nodeGroups[1].name=zone-b", "nodeGroups[1].nodeSelector.zone=b", "nodeGroups[1].topology.zone=b", "nodeGroups[1].topology.rack=r7",
		"node.topology.rack=r1", "node.topologyLabels[0]=topology.kubernetes.io/region"},
}

// inCluster are those of mode: controller alone.
var inCluster = map[string][]string{
	"watched": {"sidecars.healthMonitor.enabled=true", "snapshots.enabled=true", "monitoring.podMonitor.enabled=true"},
	"one replica, IPv6": {"controller.replicas=1", "listen=[::]:9809", "controller.http=[::]:9808", "node.transferRate=200000000",
		"controller.forgetPools[0]=0123abcd", "controller.forgetPools[1]=ffffffff"},
	"Immediate": {"storageClasses[0].name=now", "storageClasses[0].bindingMode=Immediate",
		"storageClasses[0].allowedTopologies[0].matchLabelExpressions[0].key=zone",
		"storageClasses[0].allowedTopologies[0].matchLabelExpressions[0].values[0]=a"},
	"groups": {"snapshots.enabled=true", "snapshots.groups.enabled=true", "snapshots.groups.class.default=true", "snapshotController.enabled=true",
		"node.allocatablePeriodSeconds=0"},
	"metadata": {"snapshots.enabled=true", "snapshotMetadata.enabled=true", "snapshotMetadata.from[0].podSelector.matchLabels.backup=yes"},
	"metadata's own certificate": {"snapshots.enabled=true", "snapshotMetadata.enabled=true", "snapshotMetadata.audience=backups",
		"snapshotMetadata.tls.existingSecret=m", "snapshotMetadata.tls.caCert=PEM", "sidecars.snapshotMetadata.digest=" + someDigest},
	"attached": {"attach.enabled=true", "snapshots.enabled=true", "sidecars.attacher.extraArgs[0]=--worker-threads=20"},
	"encrypted anywhere": {"attach.enabled=true", "attach.remote.enabled=true",
		"storageClasses[0].name=encrypted", "storageClasses[0].parameters.encryption=luks2", "storageClasses[0].parameters.attach=remote",
		"storageClasses[0].parameters.csi\\.storage\\.k8s\\.io/node-stage-secret-name=ringvol-key",
		"storageClasses[0].parameters.csi\\.storage\\.k8s\\.io/node-stage-secret-namespace=ringvol",
		"storageClasses[0].parameters.csi\\.storage\\.k8s\\.io/controller-publish-secret-name=ringvol-key",
		"storageClasses[0].parameters.csi\\.storage\\.k8s\\.io/controller-publish-secret-namespace=ringvol"},
	"remote": {"attach.enabled=true", "attach.remote.enabled=true", "storageClasses[0].name=anywhere", "storageClasses[0].parameters.attach=remote"},
	"remote, IPv6": {"attach.enabled=true", "attach.remote.enabled=true", "listen=[::]:9809", "attach.remote.port=4430", "attach.remote.withoutAuth=true",
		"attach.remote.ownerTimeout=1h", "attach.remote.ownerFailAfter=30s", "attach.remote.nodes[0].ipBlock.cidr=2001:db8::/64"},
	"attaching ends":       {"attach.enabled=true", "attach.ending=true", "inline.enabled=true", "inline.namespaces[0]=ci"},
	"cert-manager":         {"tls.certManager.enabled=true"},
	"cert-manager's other": {"tls.certManager.enabled=true", "tls.certManager.issuerRef.name=corp", "tls.certManager.issuerRef.kind=ClusterIssuer"},
	"own certificates":     {"tls.existingSecret.controller=c", "tls.existingSecret.node=n"},
	"certificate of each node": {"tls.existingSecret.controller=c", "tls.nodeHostPath=/etc/ringvol/tls", "nodeGroups[0].name=special",
		"nodeGroups[0].nodeSelector.special=yes", "nodeGroups[0].tlsSecret=special"},
}

const nodeMode = "mode node: "

// Every variant in both modes.
func init() {
	for name, values := range maps.Clone(variants) {
		variants[nodeMode+name] = append([]string{"mode=node"}, values...)
	}
	maps.Copy(variants, inCluster)
}

func helm(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(top + "/.cache/e2e/bin/helm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no helm: %v (it is built by ./dev test deploy)", err)
	}
	return path
}

// The chart's links to the dashboard and the rules are meant.
var withoutLinks = regexp.MustCompile(`(?m)^walk\.go:.*found symbolic link.*\n`)

// set is helm's option for a value; "text:" before it says that it is a text, though it looks like a number.
func set(value string) []string {
	if text, is := strings.CutPrefix(value, "text:"); is {
		return []string{"--set-string", text}
	}
	return []string{"--set", value}
}

// render returns what helm says on standard output, or its error.
func render(t *testing.T, values ...string) ([]byte, error) {
	t.Helper()
	args := []string{"template", "ringvol", chart, "--namespace", "storage", "--kube-version", "1.35.0"}
	for _, value := range values {
		args = append(args, set(value)...)
	}
	var out, words bytes.Buffer
	cmd := exec.Command(helm(t), args...)
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil {
		return nil, errors.New(strings.TrimSpace(withoutLinks.ReplaceAllString(words.String(), "")))
	}
	return out.Bytes(), nil
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme,
		storagev1.AddToScheme, policyv1.AddToScheme, snapshotv1.AddToScheme, groupsnapshotv1.AddToScheme, addMetadata, certmanagerv1.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// metadataService is what the CRD of external-snapshot-metadata has (cbt.storage.k8s.io/v1alpha1).
type metadataService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Address  string `json:"address"`
		Audience string `json:"audience"`
		CACert   []byte `json:"caCert"`
	} `json:"spec"`
}

func (m *metadataService) DeepCopyObject() runtime.Object {
	copied := *m
	return &copied
}

func addMetadata(scheme *runtime.Scheme) error {
	scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: "cbt.storage.k8s.io", Version: "v1alpha1", Kind: "SnapshotMetadataService"},
		&metadataService{})
	return nil
}

// decode takes manifests apart with the API's own types; a field that they do not have is an error.
func decode(t *testing.T, manifests []byte) ([]runtime.Object, error) {
	t.Helper()
	codecs := serializer.NewCodecFactory(newScheme(t), serializer.EnableStrict)
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	var objects []runtime.Object
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(stripComments(document))) == 0 {
			continue
		}
		object, _, err := codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%w\n%s", err, document)
		}
		objects = append(objects, object)
	}
}

func stripComments(document []byte) []byte {
	var kept [][]byte
	for line := range bytes.Lines(document) {
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) && !bytes.HasPrefix(line, []byte("---")) {
			kept = append(kept, line)
		}
	}
	return bytes.Join(kept, nil)
}

func objects(t *testing.T, values ...string) []runtime.Object {
	t.Helper()
	out, err := render(t, values...)
	if err != nil {
		t.Fatal(err)
	}
	found, err := decode(t, out)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// all returns the objects of one type.
func all[T runtime.Object](from []runtime.Object) []T {
	var found []T
	for _, object := range from {
		if one, ok := object.(T); ok {
			found = append(found, one)
		}
	}
	return found
}

func only[T runtime.Object](t *testing.T, from []runtime.Object) T {
	t.Helper()
	found := all[T](from)
	if len(found) != 1 {
		t.Fatalf("%d objects of %T, one is wanted", len(found), *new(T))
	}
	return found[0]
}

func TestLint(t *testing.T) {
	for name, values := range variants {
		args := []string{"lint", "--strict", "--kube-version", "1.35.0", chart}
		for _, value := range values {
			args = append(args, set(value)...)
		}
		if out, err := exec.Command(helm(t), args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// Every variant is decoded strictly, and names within it are unique.
func TestObjectsAreSound(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, object := range objects(t, values...) {
				fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
				if err != nil {
					t.Fatal(err)
				}
				meta := unstructured.Unstructured{Object: fields}
				key := fmt.Sprint(object.GetObjectKind().GroupVersionKind().Kind, " ", meta.GetNamespace(), "/", meta.GetName())
				if seen[key] {
					t.Errorf("%s twice", key)
				}
				seen[key] = true
				if meta.GetLabels()["app.kubernetes.io/instance"] != "ringvol" {
					t.Errorf("%s does not say which release it is of", key)
				}
			}
			if len(seen) < 10 {
				t.Errorf("only %d objects", len(seen))
			}
		})
	}
}

// What the decoder would say of a mistake: else the test above could not fail.
func TestDecodingIsStrict(t *testing.T) {
	out, err := render(t)
	if err != nil {
		t.Fatal(err)
	}
	for wrong, with := range map[string]string{
		"attachRequired: false":      "attachRequired: false\n  attachNeeded: true",
		"mountPropagation: Bidirect": "mountPropagations: Bidirect",
		"kind: CSIDriver":            "kind: CSIDrivers",
	} {
		spoiled := bytes.Replace(out, []byte(wrong), []byte(with), 1)
		if bytes.Equal(spoiled, out) {
			t.Fatalf("%q is not in the manifests", wrong)
		}
		if _, err := decode(t, spoiled); err == nil {
			t.Errorf("%q was taken", with)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	pool := "pools[0].name=a,pools[0].hostPath=/a,"
	class := "storageClasses[0].name=a,"
	attributes := "volumeAttributesClasses[0].name=a,volumeAttributesClasses[0].parameters."
	for value, place := range map[string]string{
		"kubletDir=/x":                                         "''",
		"kubeletDir=var/lib/kubelet":                           "'/kubeletDir'",
		"kubeletDir=/var/lib/kubelet/":                         "'/kubeletDir'",
		"driverName=Ring Vol":                                  "'/driverName'",
		"pools=null":                                           "''",
		"pools[0]=null":                                        "'/pools/0'",
		"node.http=null":                                       "'/node'",
		"pools[0].name=a":                                      "'/pools/0'",
		pool + "pools[0].hostPath=relative":                    "'/pools/0/hostPath'",
		pool + "pools[0].hostPath=/a;b=/c":                     "'/pools/0/hostPath'",
		pool + "pools[0].name=Upper":                           "'/pools/0/name'",
		pool + "pools[0].options=inti":                         "'/pools/0/options'",
		pool + "pools[0].options=init\\,":                      "'/pools/0/options'",
		pool + "pools[0].options=overcommit=":                  "'/pools/0/options'",
		pool + "pools[0].path=/x":                              "'/pools/0'",
		class + "storageClasses[0].parameters.x=y":             "'/storageClasses/0/parameters'",
		class + "storageClasses[0].parameters.device=loopback": "'/storageClasses/0/parameters/device'",
		class + "storageClasses[0].parameters.encryption=aes":  "'/storageClasses/0/parameters/encryption'",
		class + "storageClasses[0].reclaimPolicy=Recycle":      "'/storageClasses/0/reclaimPolicy'",
		"snapshots.enabled=maybe":                              "'/snapshots/enabled'",
		"snapshots.class.deletionPolicy=Keep":                  "'/snapshots/class/deletionPolicy'",
		"ublk.enabled=yes":                                     "'/ublk/enabled'",
		"node.logLevel=loud":                                   "'/node/logLevel'",
		"node.http=off":                                        "'/node/http'",
		"node.maxUnavailable=0":                                "'/node/maxUnavailable'",
		"node.maxVolumes=-1":                                   "'/node/maxVolumes'",
		"node.allocatablePeriodSeconds=9":                      "'/node/allocatablePeriodSeconds'",
		"inline.enabled=true":                                  "'/inline/namespaces'",
		"attach.enabled=yes":                                   "'/attach/enabled'",
		"attach.remote.port=0":                                 "'/attach/remote/port'",
		"attach.remote.ownerTimeout=off":                       "'/attach/remote/ownerTimeout'",
		"attach.remote.ownerFailAfter=5":                       "'/attach/remote/ownerFailAfter'",
		class + "storageClasses[0].parameters.attach=any":      "'/storageClasses/0/parameters/attach'",
		"attach.mode=remote":                                   "'/attach'",
		"inline.sources[0]=a/b":                                "'/inline/sources/0'",
		"inline.maxSize=much":                                  "'/inline/maxSize'",
		"inline.bandwidth=1ki":                                 "'/inline/bandwidth'",
		"inline.namespaces[0]=*,inline.namespaces[1]=ci":       "'/inline/namespaces'",
		"node.trimInterval=12":                                 "'/node/trimInterval'",
		"snapshots.groups.class.deletionPolicy=Keep":           "'/snapshots/groups/class/deletionPolicy'",
		"snapshotMetadata.tls.key=x":                           "'/snapshotMetadata/tls'",
		"snapshotMetadata.from[0].pods=x":                      "'/snapshotMetadata/from/0'",
		attributes + "iops=fast":                               "'/volumeAttributesClasses/0/parameters/iops'",
		attributes + "pool=a":                                  "'/volumeAttributesClasses/0/parameters'",
		"image.pullPolicy=Sometimes":                           "'/image/pullPolicy'",
		"sidecars.registrar.image=x":                           "'/sidecars'",
		"monitoring.podMonitor.interval=often":                 "'/monitoring/podMonitor/interval'",
		"mode=cluster":                                         "'/mode'",
		"listen=9809":                                          "'/listen'",
		"controller.replicas=0":                                "'/controller/replicas'",
		"controller.replicas=9":                                "'/controller/replicas'",
		"controller.forgetPools[0]=0123ABCD":                   "'/controller/forgetPools/0'",
		"controller.forgetPools[0]=0123abcdef":                 "'/controller/forgetPools/0'",
		"node.transferRate=-1":                                 "'/node/transferRate'",
		"node.topology.zone=a b":                               "'/node/topology/zone'",
		"node.topology.zo/ne/x=a":                              "'/node/topology'",
		"node.topologyLabels[0]=kubernetes.io/hostname":        "'/node/topologyLabels/0'",
		"nodeGroups[0].name=a":                                 "'/nodeGroups/0'",
		"nodeGroups[0].name=a,nodeGroups[0].nodeSelector.a=b,nodeGroups[0].nodeSelector.c=d": "'/nodeGroups/0/nodeSelector'",
		"tls.nodeHostPath=certificates":               "'/tls/nodeHostPath'",
		"tls.certManager.duration=90d":                "'/tls/certManager/duration'",
		"tls.existingSecret.ca=x":                     "'/tls/existingSecret'",
		class + "storageClasses[0].bindingMode=Later": "'/storageClasses/0/bindingMode'",
		"node.csiVersion=2":                           "'/node/csiVersion'",
		"image.digest=latest":                         "'/image/digest'",
		"sidecars.resizer.digest=sha256:12":           "'/sidecars/resizer/digest'",
		"sidecars.resizer.image=a b":                  "'/sidecars/resizer/image'",
		"networkPolicy.metricsFrom[0].pods=x":         "'/networkPolicy/metricsFrom/0'",
		"networkPolicy.on=true":                       "'/networkPolicy'",
	} {
		out, err := render(t, value)
		if err == nil {
			t.Errorf("%s was taken:\n%.200s", value, out)
		} else if strings.Count(err.Error(), "- at ") != 1 || !strings.Contains(err.Error(), "- at "+place+":") {
			t.Errorf("%s: refused for another reason: %v", value, err)
		}
	}
}

// auto goes by what the cluster has.
func TestSnapshotsByTheClusterAPI(t *testing.T) {
	run := func(more ...string) []runtime.Object {
		out, err := exec.Command(helm(t), append([]string{"template", "r", chart, "--kube-version", "1.35.0"}, more...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		found, err := decode(t, out)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	api := []string{"--api-versions", "snapshot.storage.k8s.io/v1"}
	for _, c := range []struct {
		name   string
		args   []string
		wanted int
	}{
		{"auto, no API", nil, 0},
		{"auto, API", api, 1},
		{"off, API", append([]string{"--set", "snapshots.enabled=false"}, api...), 0},
	} {
		found := run(c.args...)
		if got := len(all[*snapshotv1.VolumeSnapshotClass](found)); got != c.wanted {
			t.Errorf("%s: %d snapshot classes", c.name, got)
		}
		if got := len(only[*appsv1.StatefulSet](t, found).Spec.Template.Spec.Containers) - 3; got != c.wanted {
			t.Errorf("%s: %d snapshotters", c.name, got)
		}
		found = run(append([]string{"--set", "mode=node"}, c.args...)...)
		if got := len(only[*appsv1.DaemonSet](t, found).Spec.Template.Spec.Containers) - 2; got != c.wanted {
			t.Errorf("%s, mode node: %d snapshotters", c.name, got)
		}
	}
}

// version is ringvol's.
func version(t *testing.T) string {
	t.Helper()
	return strings.Split(strings.SplitAfterN(read(t, top+"/meson.build"), "version: '", 2)[1], "'")[0]
}

func TestVersionsAgree(t *testing.T) {
	for _, line := range []string{"version: " + version(t), "appVersion: " + version(t)} {
		if !strings.Contains(read(t, chart+"/Chart.yaml"), "\n"+line+"\n") {
			t.Errorf("Chart.yaml has not %q", line)
		}
	}
	mod := read(t, top+"/tests/e2e/parts/sidecars/go.mod") + read(t, top+"/tests/e2e/parts/snapshot-metadata/go.mod")
	for _, name := range []string{"csi-provisioner", "csi-attacher", "csi-snapshotter", "csi-resizer", "snapshot-controller", "csi-snapshot-metadata"} {
		module := map[string]string{"csi-provisioner": "external-provisioner/v6", "csi-attacher": "external-attacher/v4",
			"csi-resizer": "external-resizer/v2", "csi-snapshot-metadata": "external-snapshot-metadata"}[name]
		if module == "" {
			module = "external-snapshotter/v8"
		}
		tried := strings.Fields(strings.SplitAfterN(mod, "github.com/kubernetes-csi/"+module+" ", 2)[1])[0]
		if !strings.Contains(read(t, chart+"/values.yaml"), "registry.k8s.io/sig-storage/"+name+":"+tried+"\n") {
			t.Errorf("the chart's %s is not %s, which ./dev e2e runs", name, tried)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// deploy/kubernetes is what the chart renders today.
func TestManifestsAreRendered(t *testing.T) {
	helm(t)
	dir := t.TempDir()
	if out, err := exec.Command("bash", top+"/scripts/render-manifests.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	fresh, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadDir(top + "/deploy/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	if len(fresh) != len(kept) {
		t.Errorf("%d files are rendered, %d are kept", len(fresh), len(kept))
	}
	for _, file := range fresh {
		manifests := read(t, filepath.Join(dir, file.Name()))
		if manifests != read(t, filepath.Join(top, "deploy/kubernetes", file.Name())) {
			t.Errorf("%s is not what the chart renders: run scripts/render-manifests.sh", file.Name())
		}
		if _, err := decode(t, []byte(manifests)); err != nil {
			t.Errorf("%s: %v", file.Name(), err)
		}
	}
}
