package admin

import (
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// levels are what the log can be set to, from the most said to the least.
var levels = []string{"trace", "debug", "info", "warn", "error"} //nolint:gochecknoglobals // a constant list

type level struct {
	Level    string `json:"level"`
	Operator string `json:"operator"`
}

// setLevel changes how much the log says until the process ends or it is changed again.
func setLevel(r *http.Request, logger hclog.Logger) (int, any) {
	var in level
	if status, problem := decode(r, &in); status != 0 {
		return status, problem
	}
	if !slices.Contains(levels, in.Level) || strings.TrimSpace(in.Operator) == "" {
		return http.StatusBadRequest, message("want level (one of %s) and operator", strings.Join(levels, ", "))
	}
	before := logger.GetLevel().String()
	logger.SetLevel(min(hclog.Info, logger.GetLevel())) // the change itself is always said
	logger.Info("an operator set the log's level", "event", "log_level_set", "level", in.Level, "before", before, "by", in.Operator)
	logger.SetLevel(hclog.LevelFromString(in.Level))
	return http.StatusOK, map[string]string{"level": in.Level}
}
