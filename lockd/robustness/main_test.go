package robustness_test

import (
	"testing"

	"fenceline/internal/pgserver/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
