package app

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo returns a logger for the embedded etcd that writes its warnings and errors to ours, as event "etcd", until quiet is true: a
// member that is being stopped complains about that.
func zapTo(logger hclog.Logger, quiet *atomic.Bool) *zap.Logger {
	return zap.New(zapCore{LevelEnabler: zapcore.WarnLevel, logger: logger, quiet: quiet})
}

// notOurs are warnings about what doesn't apply to a member that only its own process reaches.
func notOurs(message string) bool {
	return strings.HasPrefix(message, "Running http and grpc server on single port") || strings.HasPrefix(message, "simple token is not")
}

// zapCore implements zapcore.Core.
type zapCore struct {
	zapcore.LevelEnabler
	logger hclog.Logger
	quiet  *atomic.Bool
	fields []zapcore.Field
}

func (c zapCore) With(fields []zapcore.Field) zapcore.Core {
	c.fields = append(slices.Clip(c.fields), fields...)
	return c
}

func (c zapCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) && !c.quiet.Load() && !notOurs(entry.Message) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c zapCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, field := range append(slices.Clip(c.fields), fields...) {
		field.AddTo(values)
	}
	args := []any{"event", "etcd"}
	for _, name := range slices.Sorted(maps.Keys(values.Fields)) {
		args = append(args, name, values.Fields[name])
	}
	if entry.Level > zapcore.WarnLevel {
		c.logger.Error(entry.Message, args...)
	} else {
		c.logger.Warn(entry.Message, args...)
	}
	return nil
}

func (zapCore) Sync() error { return nil }
