package app

import (
	"testing"

	"fenceline/internal/pgserver/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
