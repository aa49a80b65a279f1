//! Who is measured: each as its own guide sets it up for one upstream, on free ports of loopback.

use std::fmt::Write as _;
use std::fs;
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

use crate::answers::Dialect;
use crate::client::{Target, key};
use crate::process::{Process, free_address};

/// Who can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// Nobody: the generator straight to the upstream.
    Nobody,
    /// `bin/bare.rs`.
    Bare,
    /// berth, with audit, metrics and two credentials.
    Berth,
    /// Debian's.
    Nginx,
    /// Debian's.
    Haproxy,
    /// PyPI's, installed under `target/bench/litellm`.
    LiteLlm,
    /// npm's, installed under `target/bench/portkey`.
    Portkey,
}

impl Who {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Who::Nobody => "no proxy",
            Who::Bare => "bare Pingora",
            Who::Berth => "berth",
            Who::Nginx => "nginx",
            Who::Haproxy => "HAProxy",
            Who::LiteLlm => "LiteLLM",
            Who::Portkey => "Portkey",
        }
    }
}

/// Where things are kept and found.
pub struct Place {
    /// Logs, configurations, certificates: `target/bench`.
    pub folder: PathBuf,
    /// Where `field` itself was built to, and `bare` and `berth` with it.
    pub programs: PathBuf,
    /// Where the upstream listens.
    pub upstream: SocketAddr,
    certificate: CertificateDer<'static>,
}

/// Somebody who runs.
pub struct Contender {
    /// Who it is.
    pub who: Who,
    /// Where requests go.
    pub target: Target,
    /// The same with TLS, where it was asked for.
    pub tls: Option<Target>,
    /// None where nobody runs.
    pub process: Option<Process>,
    /// For berth, its configuration and where it tells of itself.
    pub berth: Option<(PathBuf, SocketAddr)>,
}

impl Place {
    /// Prepares the folder, and a certificate for whoever ends TLS.
    pub fn new(folder: PathBuf, programs: PathBuf, upstream: SocketAddr) -> Result<Place> {
        fs::create_dir_all(&folder)?;
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let made = made.map_err(Error::other)?;
        fs::write(folder.join("certificate.pem"), made.cert.pem())?;
        fs::write(folder.join("key.pem"), made.signing_key.serialize_pem())?;
        Ok(Place {
            folder,
            programs,
            upstream,
            certificate: made.cert.der().clone(),
        })
    }

    /// Starts somebody, and waits until requests are taken.
    pub fn start(&self, who: Who) -> Result<Contender> {
        let address = free_address()?;
        let mut contender = Contender {
            who,
            target: Target::plain(address),
            tls: None,
            process: None,
            berth: None,
        };
        let within = match who {
            Who::LiteLlm => Duration::from_secs(180),
            _ => Duration::from_secs(15),
        };
        let mut process = match who {
            Who::Nobody => {
                contender.target.address = self.upstream;
                return Ok(contender);
            }
            Who::Bare => self.bare(&mut contender)?,
            Who::Berth => self.berth(&mut contender, 2)?,
            Who::Nginx => self.nginx(address)?,
            Who::Haproxy => self.haproxy(address)?,
            Who::LiteLlm => self.litellm(address)?,
            Who::Portkey => self.portkey(&mut contender)?,
        };
        process.listens(address, within)?;
        contender.process = Some(process);
        // Whoever listens and cannot answer is not measured either.
        let request = contender.target.request(Dialect::Chat, "short", 2048);
        contender.target.connect()?.exchange(&request, |_| {})?;
        Ok(contender)
    }

    /// A berth with so many credentials, which is not waited for.
    pub fn berth_of(&self, credentials: usize) -> Result<Contender> {
        let mut contender = Contender {
            who: Who::Berth,
            target: Target::plain(free_address()?),
            tls: None,
            process: None,
            berth: None,
        };
        contender.process = Some(self.berth(&mut contender, credentials)?);
        Ok(contender)
    }

    fn bare(&self, contender: &mut Contender) -> Result<Process> {
        let tls = free_address()?;
        contender.tls = Some(self.with_tls(tls)?);
        let mut bare = Command::new(self.programs.join("bare"));
        bare.args([
            contender.target.address.to_string(),
            self.upstream.to_string(),
        ])
        .arg(tls.to_string())
        .arg(self.folder.join("certificate.pem"))
        .arg(self.folder.join("key.pem"));
        self.run("bare", bare)
    }

    fn berth(&self, contender: &mut Contender, credentials: usize) -> Result<Process> {
        let (tls, admin) = (free_address()?, free_address()?);
        contender.tls = Some(self.with_tls(tls)?);
        let folder = self.folder.display();
        let mut text = format!(
            "listeners:\n  - address: {}\n  - address: {tls}\n    tls: {{ certificate: \
             {folder}/certificate.pem, private_key: {folder}/key.pem }}\n\
             process: {{ runtime_dir: {folder}/run-{} }}\n\
             admin: {{ address: {admin} }}\n\
             audit: {{ path: {folder}/audit.jsonl }}\n\
             limits: {{ memory: 6GiB }}\n\
             upstreams: {{ fake: {{ base_url: \"http://{}/v1\" }} }}\n\
             credentials:\n",
            contender.target.address,
            admin.port(),
            self.upstream,
        );
        for number in 0..credentials {
            // No limit of requests in flight: a thousand streams go through two credentials.
            let _ = writeln!(
                text,
                "  - {{ id: c{number}, upstream: fake, secret: {{ env: BENCH_SECRET }}, max_in_flight: 0 }}"
            );
        }
        let config = self.folder.join(format!("berth-{credentials}.yaml"));
        fs::write(&config, text)?;
        let mut berth = Command::new(self.programs.join("berth"));
        berth
            .args(["run", "-c"])
            .arg(&config)
            .env("BENCH_SECRET", "sk-bench");
        let mut stop = Command::new(self.programs.join("berth"));
        stop.args(["stop", "--now", "-c"]).arg(&config);
        contender.berth = Some((config, admin));
        Ok(self.run("berth", berth)?.stopped_by(stop))
    }

    fn nginx(&self, address: SocketAddr) -> Result<Process> {
        let (folder, upstream) = (self.folder.display(), self.upstream);
        let text = format!(
            "worker_processes auto;\ndaemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/nginx-error.log;\n\
             events {{ worker_connections 16384; }}\n\
             http {{\n  access_log {folder}/nginx-access.log;\n  client_max_body_size 64m;\n\
             client_body_temp_path {folder}/nginx-body;\n  proxy_temp_path {folder}/nginx-proxy;\n\
             fastcgi_temp_path {folder}/nginx-f;\n  uwsgi_temp_path {folder}/nginx-u;\n  scgi_temp_path {folder}/nginx-s;\n\
             upstream fake {{ server {upstream}; keepalive 1024; }}\n\
             server {{\n    listen {address};\n    keepalive_requests 1000000000;\n    location / {{\n\
             proxy_pass http://fake;\n      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n\
             proxy_set_header Authorization \"Bearer sk-bench\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
        );
        let config = self.folder.join("nginx.conf");
        fs::write(&config, text)?;
        let mut nginx = Command::new(found("nginx")?);
        nginx.arg("-p").arg(&self.folder).arg("-c").arg(&config);
        self.run("nginx", nginx)
    }

    fn haproxy(&self, address: SocketAddr) -> Result<Process> {
        let text = format!(
            "global\n  maxconn 9000\n  log stdout format raw local0\n\
             defaults\n  mode http\n  log global\n  option httplog\n  timeout connect 5s\n  timeout client 300s\n\
             timeout server 300s\n  http-reuse safe\n\
             frontend edge\n  bind {address}\n  default_backend fake\n\
             backend fake\n  http-request set-header Authorization \"Bearer sk-bench\"\n  server one {}\n",
            self.upstream,
        );
        let config = self.folder.join("haproxy.cfg");
        fs::write(&config, text)?;
        let mut haproxy = Command::new(found("haproxy")?);
        haproxy.arg("-db").arg("-f").arg(&config);
        self.run("haproxy", haproxy)
    }

    fn litellm(&self, address: SocketAddr) -> Result<Process> {
        let program = self.folder.join("litellm/bin/litellm");
        if !program.exists() {
            return Err(Error::other("it could not be installed from PyPI"));
        }
        let text = format!(
            "model_list:\n  - model_name: short\n    litellm_params:\n      model: openai/short\n\
             \x20     api_base: http://{}/v1\n      api_key: sk-bench\n",
            self.upstream,
        );
        let config = self.folder.join("litellm.yaml");
        fs::write(&config, text)?;
        let mut litellm = Command::new(program);
        let cores = std::thread::available_parallelism()?.to_string();
        litellm
            .arg("--config")
            .arg(&config)
            .args(["--host", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--num_workers", &cores, "--telemetry", "False"])
            // What its guide to production says; and no list of prices from the network.
            .envs([("LITELLM_LOG", "ERROR"), ("LITELLM_MODE", "PRODUCTION")])
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("LITELLM_MASTER_KEY", key());
        self.run("litellm", litellm)
    }

    fn portkey(&self, contender: &mut Contender) -> Result<Process> {
        let package = self.folder.join("portkey/node_modules/@portkey-ai/gateway");
        let program = package.join("build/start-server.js");
        if !program.exists() {
            return Err(Error::other("it could not be installed from npm"));
        }
        contender.target.headers = format!(
            "x-portkey-provider: openai\r\nx-portkey-custom-host: http://{}/v1\r\n",
            self.upstream,
        );
        let mut portkey = Command::new(found("node")?);
        portkey
            .arg(program)
            .arg("--headless")
            .arg(format!("--port={}", contender.target.address.port()))
            .env("TRUSTED_CUSTOM_HOSTS", "127.0.0.1,localhost")
            .env("NODE_ENV", "production");
        self.run("portkey", portkey)
    }

    fn run(&self, name: &str, mut command: Command) -> Result<Process> {
        Process::start(&mut command, &self.folder.join(format!("{name}.log")))
    }

    fn with_tls(&self, address: SocketAddr) -> Result<Target> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(Error::other)?;
        let mut rules = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Every connection is a stranger's: no session is resumed.
        rules.resumption = Resumption::disabled();
        Ok(Target {
            tls: Some(Arc::new(rules)),
            ..Target::plain(address)
        })
    }
}

/// Where a program is: in `PATH`, or where Debian puts what runs as a service.
pub fn found(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut all = folders.map(|folder: PathBuf| folder.join(name));
    all.find(|program: &PathBuf| Path::exists(program))
        .ok_or_else(|| Error::other(format!("{name} is not installed")))
}
