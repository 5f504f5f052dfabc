package main

import (
	"errors"
	"strings"
	"time"

	"fenceline/lockd/app"
)

// storeFlags say where grants are kept.
type storeFlags struct {
	Backend          string        `help:"Where grants are kept: ${enum} (PostgreSQL or etcd)." env:"LOCKD_BACKEND" enum:"pg,etcd" default:"pg"`
	DatabaseURL      string        `help:"Connection URL of lockdb." env:"LOCKD_DATABASE_URL,LOCKDB_URL" placeholder:"URL"`
	MaxConns         int32         `help:"Connections to lockdb, at most." env:"LOCKD_MAX_CONNS" default:"16"`
	QueryMode        string        `help:"How statements are sent: ${enum}. cache_statement needs a direct connection; the others work behind a transaction-mode pooler." env:"LOCKD_QUERY_MODE" enum:"cache_describe,cache_statement,exec,simple_protocol" default:"cache_describe"`
	EtcdEndpoints    string        `help:"Members of the etcd cluster: http(s)://host:port, with commas between." env:"LOCKD_ETCD_ENDPOINTS" placeholder:"URLS"`
	EtcdPrefix       string        `help:"What all of lockd's keys begin with." env:"LOCKD_ETCD_PREFIX" default:"fenceline/lockd/"`
	EtcdCA           string        `help:"Authorities of the members' certificates, in PEM; the system's when left out." env:"LOCKD_ETCD_CA" name:"etcd-ca" placeholder:"FILE"`
	EtcdCert         string        `help:"lockd's certificate for etcd, in PEM." env:"LOCKD_ETCD_CERT" placeholder:"FILE"`
	EtcdKey          string        `help:"The certificate's key." env:"LOCKD_ETCD_KEY" placeholder:"FILE"`
	EtcdUser         string        `help:"lockd's user in etcd." env:"LOCKD_ETCD_USER"`
	EtcdPasswordFile string        `help:"The user's password is in this file." env:"LOCKD_ETCD_PASSWORD_FILE" placeholder:"FILE"`
	EtcdEmbedded     string        `help:"Run a single etcd member in this process, with its data in this folder: no replicas, nothing else to install." env:"LOCKD_ETCD_EMBEDDED" placeholder:"DIR"`
	StoreTimeout     time.Duration `help:"Time limit for one statement, or for one call with etcd." env:"LOCKD_STORE_TIMEOUT" default:"3s"`
	StartupTimeout   time.Duration `help:"How long the start waits for the store before it goes on without." env:"LOCKD_STARTUP_TIMEOUT" default:"5s"`
}

// AfterApply is called once the flags are read. An embedded etcd is etcd, whether or not somebody says so twice.
func (f *storeFlags) AfterApply() error {
	if f.EtcdEmbedded != "" {
		f.Backend = "etcd"
	}
	if f.Backend == "pg" && f.DatabaseURL == "" {
		return errors.New("missing --database-url=URL; or give --backend etcd with --etcd-endpoints, or --etcd-embedded=DIR to need nothing else")
	}
	return nil
}

func (f *storeFlags) etcd() app.EtcdConfig {
	c := app.EtcdConfig{
		Prefix: f.EtcdPrefix, CA: f.EtcdCA, Cert: f.EtcdCert, Key: f.EtcdKey, User: f.EtcdUser, PasswordFile: f.EtcdPasswordFile, Embedded: f.EtcdEmbedded,
	}
	for endpoint := range strings.SplitSeq(f.EtcdEndpoints, ",") {
		if endpoint = strings.TrimSpace(endpoint); endpoint != "" {
			c.Endpoints = append(c.Endpoints, endpoint)
		}
	}
	return c
}
