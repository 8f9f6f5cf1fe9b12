//! Kinds of messages: a frame without what it says. Tables and rules are keyed on them, by matches that know every one.

use interline_model::Text;

use super::{CodeKind, Control, DataKind, Frame, LifecycleKind, RequestKind};

/// What kind of message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// A frame of the data plane.
    Data(DataKind),
    /// A `control_request`, by what is asked.
    Request(RequestKind),
    /// A `control_request` for something that the protocol does not name.
    OtherRequest,
    /// A `control_response`.
    Response,
    /// A `control_cancel_request`.
    Cancel,
    /// A lifecycle frame.
    Lifecycle(LifecycleKind),
    /// A frame of the code plane.
    Code(CodeKind),
    /// An object of a type that the protocol does not name.
    Unknown,
    /// No JSON object at all.
    Malformed,
}

impl FrameKind {
    /// All of them, in the order of native-ws.md §5.
    pub fn all() -> impl Iterator<Item = Self> {
        let data = DataKind::ALL.iter().copied().map(Self::Data);
        let requests = RequestKind::ALL.iter().copied().map(Self::Request);
        let lifecycle = LifecycleKind::ALL.iter().copied().map(Self::Lifecycle);
        let code = CodeKind::ALL.iter().copied().map(Self::Code);
        data.chain(requests)
            .chain([Self::OtherRequest, Self::Response, Self::Cancel])
            .chain(lifecycle)
            .chain(code)
            .chain([Self::Unknown, Self::Malformed])
    }

    /// The kind of a message with this text.
    #[must_use]
    pub fn of(text: &Text) -> Self {
        Frame::parse(text).map_or(Self::Malformed, |frame| frame.kind())
    }

    /// `type`, or `type/subtype`; `unknown` and `malformed` for what has none.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Data(kind) => kind.name(),
            Self::Request(kind) => kind.name(),
            Self::OtherRequest => "control_request",
            Self::Response => "control_response",
            Self::Cancel => "control_cancel_request",
            Self::Lifecycle(kind) => kind.name(),
            Self::Code(kind) => kind.name(),
            Self::Unknown => "unknown",
            Self::Malformed => "malformed",
        }
    }
}

impl Frame<'_> {
    /// Which kind it is.
    #[must_use]
    pub fn kind(&self) -> FrameKind {
        match self {
            Self::Data(data) => FrameKind::Data(data.kind()),
            Self::Control(Control::Request(request)) => {
                request.request().map_or(FrameKind::OtherRequest, |request| FrameKind::Request(request.kind()))
            }
            Self::Control(Control::Response(_)) => FrameKind::Response,
            Self::Control(Control::Cancel(_)) => FrameKind::Cancel,
            Self::Lifecycle(lifecycle) => FrameKind::Lifecycle(lifecycle.kind()),
            Self::Code(code) => FrameKind::Code(code.kind()),
            Self::Unknown(_) => FrameKind::Unknown,
        }
    }
}
