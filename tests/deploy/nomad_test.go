// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
)

// Nomad's own parser takes the jobs, and ringvol its flags. Nomad itself is not run.
func TestNomadJobs(t *testing.T) {
	for file, c := range map[string]struct{ variables, kind, job, plugin string }{
		"ringvol.nomad.hcl":            {"node=node-a", "monolith", "ringvol-node-a", "ringvol-node-a"},
		"ringvol-controller.nomad.hcl": {"controller=192.0.2.1", "controller", "ringvol-controller", "ringvol"},
		"ringvol-nodes.nomad.hcl":      {"controller=192.0.2.1", "node", "ringvol-nodes", "ringvol"},
	} {
		t.Run(file, func(t *testing.T) {
			path := top + "/deploy/nomad/" + file
			parse := func(body string) (*api.Job, error) {
				return jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: path, Body: []byte(body), ArgVars: []string{c.variables}, Strict: true})
			}
			body := read(t, path)
			job, err := parse(body)
			if err != nil {
				t.Fatal(err)
			}
			task := job.TaskGroups[0].Tasks[0]
			var args []string
			for _, arg := range task.Config["args"].([]any) {
				args = append(args, strings.NewReplacer("${node.unique.name}", "node-a", "${attr.unique.network.ip-address}", "192.0.2.2").
					Replace(arg.(string)))
			}
			plugin := task.CSIPluginConfig
			if *job.ID != c.job || plugin == nil || string(plugin.Type) != c.kind || plugin.ID != c.plugin {
				t.Errorf("job %s, plugin %+v", *job.ID, plugin)
			}
			if privileged, _ := task.Config["privileged"].(bool); privileged == (c.kind == "controller") {
				t.Errorf("privileged is %v", privileged)
			}
			if !strings.Contains(body, "ringvol.dev/ringvol:"+version(t)+`"`) {
				t.Error("the image is of another version")
			}
			if _, err := parse(strings.Replace(body, "kill_timeout", "kill_timeouts", 1)); err == nil {
				t.Error("a field that Nomad does not have was taken")
			}
			if c.kind == "monolith" && !strings.Contains(read(t, top+"/deploy/nomad/volume.hcl"), `plugin_id = "`+plugin.ID+`"`) {
				t.Errorf("the example of a volume is not of plugin %s", plugin.ID)
			}
			ringvol := os.Getenv("RINGVOL_BIN")
			if ringvol == "" {
				t.Skip("RINGVOL_BIN names no ringvol")
			}
			if out, err := exec.Command(ringvol, append(args, "--help")...).CombinedOutput(); err != nil {
				t.Errorf("%q: %s", args, out)
			}
		})
	}
}
