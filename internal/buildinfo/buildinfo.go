// Package buildinfo says which build a program is.
package buildinfo

import "runtime/debug"

// Version is the module's version, or the commit that it was built from, or "unknown".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && (version == "" || version == "(devel)") {
			version = setting.Value
		}
	}
	if version == "" {
		return "unknown"
	}
	return version
}
