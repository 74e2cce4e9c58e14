// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/jobspec2"
)

const nomadJob = top + "/deploy/nomad/ringvol.nomad.hcl"

// Nomad's own parser takes the job, and ringvol its flags. Nomad itself is not run.
func TestNomadJob(t *testing.T) {
	parse := func(body string) ([]string, string, error) {
		job, err := jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: nomadJob, Body: []byte(body),
			ArgVars: []string{"node=node-a"}, Strict: true})
		if err != nil {
			return nil, "", err
		}
		task := job.TaskGroups[0].Tasks[0]
		var args []string
		for _, arg := range task.Config["args"].([]any) {
			args = append(args, strings.ReplaceAll(arg.(string), "${node.unique.name}", "node-a"))
		}
		if *job.ID != "ringvol-node-a" || task.CSIPluginConfig == nil || task.CSIPluginConfig.Type != "monolith" {
			t.Errorf("job %s, plugin %+v", *job.ID, task.CSIPluginConfig)
		}
		return args, task.CSIPluginConfig.ID, nil
	}
	body := read(t, nomadJob)
	args, plugin, err := parse(body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(read(t, top+"/deploy/nomad/volume.hcl"), `plugin_id = "`+plugin+`"`) {
		t.Errorf("the example of a volume is not of plugin %s", plugin)
	}
	if !strings.Contains(body, "ringvol.dev/ringvol:"+version(t)+`"`) {
		t.Error("the image is of another version")
	}
	if _, _, err := parse(strings.Replace(body, "kill_timeout", "kill_timeouts", 1)); err == nil {
		t.Error("a field that Nomad does not have was taken")
	}
	ringvol := os.Getenv("RINGVOL_BIN")
	if ringvol == "" {
		t.Skip("RINGVOL_BIN names no ringvol")
	}
	if out, err := exec.Command(ringvol, append(args, "--help")...).CombinedOutput(); err != nil {
		t.Errorf("%q: %s", args, out)
	}
}
