package main

import "fenceline/lockd/app"

// accessFlags say who may call lockd.
type accessFlags struct {
	AllowAnyHost      bool   `help:"Bind to an address that others can reach, although lockd asks nobody there who they are." env:"LOCKD_ALLOW_ANY_HOST"`
	ClientTokenFile   string `help:"Clients need one of the bearer tokens in this file, one a line. The file is read again when it changes." env:"LOCKD_CLIENT_TOKEN_FILE" placeholder:"FILE"`
	OperatorTokenFile string `help:"Revoking and listing need one of the bearer tokens in this file." env:"LOCKD_OPERATOR_TOKEN_FILE" placeholder:"FILE"`
	TLSCert           string `help:"Serve the API with TLS and this certificate with its chain, in PEM." env:"LOCKD_TLS_CERT" name:"tls-cert" placeholder:"FILE"`
	TLSKey            string `help:"The certificate's key." env:"LOCKD_TLS_KEY" name:"tls-key" placeholder:"FILE"`
	TLSClientCA       string `help:"Clients need a certificate from one of the authorities in this file." env:"LOCKD_TLS_CLIENT_CA" name:"tls-client-ca" placeholder:"FILE"`
	MaxConnections    int    `help:"Connections to the API at once, at most; more are answered 503." env:"LOCKD_MAX_CONNECTIONS" default:"20000"`
}

func (f accessFlags) config() app.AccessConfig {
	return app.AccessConfig{
		ClientTokens: f.ClientTokenFile, OperatorTokens: f.OperatorTokenFile, TLSCert: f.TLSCert, TLSKey: f.TLSKey, TLSClientCA: f.TLSClientCA,
	}
}
