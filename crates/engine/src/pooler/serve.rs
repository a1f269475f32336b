//! The child's side.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;

use kernels_ffi::{Model, ModelParams, PooledContext};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use super::{FromChild, MESSAGE_MAX, PoolerConfig, PoolerSpec, ToChild};
use crate::codec::{self, Limits, Message, ReadError};

/// Serves one model to the parent, in a process that was started by [`super::Pooler::spawn`]: the binary's `main` calls
/// this for the arguments that say so, before it starts anything else, and it never returns. The process ends when the
/// parent's end of the socket closes, after the text that it is at.
pub fn serve() -> ! {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let end = runtime.map_err(ReadError::from).and_then(|runtime| runtime.block_on(run()));
    if let Err(error) = &end {
        tracing::error!(%error, "the process of a model that pools failed");
    }
    std::process::exit(i32::from(end.is_err()))
}

/// Nothing else runs in this process: what blocks keeps nobody waiting but the parent, who waits for it.
async fn run() -> Result<(), ReadError> {
    let socket = StdUnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let mut socket = UnixStream::from_std(socket)?;
    let config = match codec::read(&mut socket, Limits::control_of(MESSAGE_MAX)).await? {
        Some((_, Message::Control(ToChild::Config(config)))) => config,
        _ => return Err(ReadError::Invalid("no configuration".to_owned())),
    };
    let mut context = match load(&config) {
        Ok((context, spec)) => {
            say(&mut socket, FromChild::Ready(spec)).await?;
            context
        }
        Err(reason) => {
            say(&mut socket, FromChild::Failed(reason.clone())).await?;
            return Err(ReadError::Invalid(reason));
        }
    };
    loop {
        match codec::read(&mut socket, Limits::control_of(MESSAGE_MAX)).await? {
            None => return Ok(()),
            Some((_, Message::Control(ToChild::Embed(tokens)))) => {
                let answer = match context.embed(&tokens) {
                    Ok(vector) => FromChild::Vector(vector),
                    Err(error) => FromChild::Refused(error.to_string()),
                };
                say(&mut socket, answer).await?;
            }
            Some(_) => return Err(ReadError::Invalid("something else than a text".to_owned())),
        }
    }
}

async fn say(socket: &mut UnixStream, what: FromChild) -> Result<(), ReadError> {
    codec::write(socket, &Message::Control(what), 0).await?;
    Ok(socket.flush().await?)
}

fn load(config: &str) -> Result<(PooledContext, PoolerSpec), String> {
    let config: PoolerConfig = serde_json::from_str(config).map_err(|error| error.to_string())?;
    let devices = config.compute.device.iter().cloned().collect();
    let params = ModelParams { gpu_layers: config.compute.gpu_layers, devices, ..ModelParams::default() };
    let model = Model::load(&config.model_path, &params).map_err(|error| error.to_string())?;
    let context =
        PooledContext::new(&model, config.n_ctx, config.compute.threads).map_err(|error| error.to_string())?;
    let spec = PoolerSpec {
        dimensions: context.dimensions(),
        pooling: context.pooling().name().to_owned(),
        n_ctx: context.n_ctx(),
        weight_bytes: model.size_bytes(),
    };
    Ok((context, spec))
}
